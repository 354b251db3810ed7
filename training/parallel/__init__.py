"""How the ranks of a job train one model together: the interface that the loop calls, and the choice of its class."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import Tensor, nn

    from training.checkpoint.state import TrainingState
    from training.parallel.ranks import Ranks
    from training.parallel.shard import Shard
    from training.parallel.sums import Plan
    from training.sections import TrainSection


class Parallelism(Protocol):
    """All ranks call each method together."""

    shard: Shard
    """Which rows of every parameter this rank holds; all of them, unless the model is in shards."""
    calls_together: bool
    """Whether a forward pass exchanges messages, so that all ranks must make the same number of them."""

    def accelerator(self, mixed: str) -> Accelerator:
        """accelerate's object, set up for this parallelism; `mixed` is its name of the precision: no, bf16, fp16."""

    def wrap(self, state: TrainingState, accelerator: Accelerator) -> nn.Module:
        """Wrap the state's model so that it trains with the other ranks, and return the module to call instead. If this
        replaces the model's parameters, it must also replace the state's optimizer."""

    def accumulate(self) -> AbstractContextManager[None]:
        """The context of every backward pass of a step except the last: gradients stay on this rank."""

    def clip(self, limit: float) -> Tensor:
        """Scale the gradients so that the norm over the whole model is at most `limit`; returns the norm before."""

    def waited(self) -> float:
        """Seconds that the last backward pass waited for other ranks after this one's gradients were ready. 0 on a GPU,
        which works asynchronously."""

    def tensors(self, *, optimizer: bool) -> dict[str, dict[str, Tensor]]:
        """File name -> tensors by name: this rank's part of a checkpoint, of the model and, if asked, of the optimizer.
        training.checkpoint.files.part_file makes the names of a shard's files."""

    def check_in_step(self, step: int) -> str:
        """Compare the model's parameters among the ranks that should have the same ones, and return their digest.

        Raises agreement.DisagreementError, on every rank, if they are not equal.
        """


def choose(ranks: Ranks, plan: Plan, train: TrainSection) -> Parallelism:
    """The parallelism of a plan: FSDP, or of a whole model none for one rank and DDP for more."""
    from training.parallel.ddp import DDP, OneRank
    from training.parallel.fsdp import FSDP

    if plan.parallel == "fsdp":
        return FSDP(ranks, plan, train)
    return (DDP if ranks.size > 1 else OneRank)(ranks, recomputes=train.recompute)
