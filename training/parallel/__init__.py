"""How the ranks of a job train one model together: the interface that the loop calls, and what implements it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import Tensor, nn

    from training.checkpoint.state import State
    from training.parallel.ranks import Ranks


class Parallelism(Protocol):
    """Every rank calls each of these at the same moment."""

    def accelerator(self, mixed: str) -> Accelerator:
        """accelerate's object, set up for this parallelism; `mixed` is its word for the precision: no, bf16, fp16."""

    def wrap(self, state: State, accelerator: Accelerator) -> nn.Module:
        """Make the model of the state one that trains with the other ranks' and return what to call in its place. What
        replaces the model's parameters must replace the state's optimizer too."""

    def accumulate(self) -> AbstractContextManager[None]:
        """Around every backward pass of a step but the last: gradients stay on this rank."""

    def clip(self, limit: float) -> Tensor:
        """Scale the gradients so that the norm over the whole model is at most `limit`; returns the norm before."""

    def waited(self) -> float:
        """Seconds that the last backward pass waited for other ranks after this one's gradients were ready. A GPU works
        behind the program, so it is 0 there."""

    def tensors(self, *, optimizer: bool) -> dict[str, dict[str, Tensor]]:
        """File name -> tensors by name: what this rank puts into a checkpoint, of the model and, if asked, of the
        optimizer. The names of a shard's files are made by training.checkpoint.files.part_file."""

    def check_in_step(self, step: int) -> str:
        """A digest of the model's parameters, after comparing them among the ranks that hold the same ones.

        Raises agreement.DisagreementError, on every rank, where they are not equal.
        """


def choose(ranks: Ranks) -> Parallelism:
    """The parallelism for these ranks: none for one, DDP for more."""
    from training.parallel.ddp import DDP, OneRank

    return DDP(ranks) if ranks.size > 1 else OneRank(ranks)
