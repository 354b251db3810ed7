"""Data parallelism: every rank holds the whole model, and DDP averages the gradients during the backward pass."""

# No `from __future__ import annotations` here: DDP compares the annotations of its hook with types, not with strings.

import contextlib
import time

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import Tensor, nn

from training import optimizer as optimizers
from training.checkpoint.state import TrainingState
from training.parallel import agreement, recompute
from training.parallel.ranks import Ranks
from training.parallel.shard import WHOLE


class OneRank:
    """No parallelism: training.parallel.Parallelism for a single rank."""

    shard = WHOLE
    calls_together = False

    def __init__(self, ranks: Ranks, *, recomputes: bool = False) -> None:
        """`recomputes`: the blocks' activations are computed again in the backward pass instead of being kept."""
        self.ranks, self.recomputes = ranks, recomputes

    def accelerator(self, mixed: str) -> Accelerator:
        return Accelerator(
            mixed_precision=mixed,
            cpu=self.ranks.device.type == "cpu",
            kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
        )

    def wrap(self, state: TrainingState, accelerator: Accelerator) -> nn.Module:
        self.state, self.accelerate = state, accelerator
        if self.recomputes:
            recompute.apply(state.model.blocks)
        self.module: nn.Module = accelerator.prepare_model(state.model)
        return self.module

    def accumulate(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def clip(self, limit: float) -> Tensor:
        norm: Tensor = self.accelerate.clip_grad_norm_(self.state.model.parameters(), limit)
        return norm

    def waited(self) -> float:
        return 0.0

    def tensors(self, *, optimizer: bool) -> dict[str, dict[str, Tensor]]:
        model = self.state.model
        files = {"model.safetensors": {name: p.detach() for name, p in model.named_parameters()}}
        if optimizer:
            files["optimizer.safetensors"] = optimizers.tensors(model, self.state.optimizer)
        return files

    def check_in_step(self, step: int) -> str:
        compared = dict(self.state.model.named_parameters())
        # Muon's matrices are sent to all ranks after each update, so only their momentum shows equal gradients.
        momentum = optimizers.tensors(self.state.model, self.state.optimizer).items()
        compared |= {name: value for name, value in momentum if name.startswith("momentum_buffer.")}
        return agreement.compare(self.ranks, compared, step)


class DDP(OneRank):
    """torch's DistributedDataParallel; also notes when this rank's gradients were ready, for `waited`."""

    last_bucket = 0.0
    """When (perf_counter) this rank's last gradients were ready to be sent; 0: not since the last `waited`."""

    def wrap(self, state: TrainingState, accelerator: Accelerator) -> nn.Module:
        """Wrap the model in DDP last, after anything that may replace its parameters (IPEX does). A published trainer
        leaves DDP out where it uses IPEX, so its ranks train independently."""
        super().wrap(state, accelerator)
        # Not in an elastic job: a rank lost in the middle of the exchange would leave matrices of two steps behind.
        if isinstance(state.optimizer, optimizers.MuonAndAdamW) and not self.ranks.elastic:
            state.optimizer.share_work(self.ranks.rank, self.ranks.size)
        self.module.register_comm_hook(None, self._average)
        self._settle_buckets()
        return self.module

    def accumulate(self) -> contextlib.AbstractContextManager[None]:
        inside: contextlib.AbstractContextManager[None] = self.accelerate.no_sync(self.module)
        return inside

    def waited(self) -> float:
        if not self.last_bucket or self.ranks.device.type != "cpu":
            return 0.0
        seconds, self.last_bucket = time.perf_counter() - self.last_bucket, 0.0
        return seconds

    def _average(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average a bucket of gradients over the ranks, as DDP does by default; note the last bucket's time."""
        gradients = bucket.buffer().div_(dist.get_world_size())
        if bucket.is_last():
            self.last_bucket = time.perf_counter()
        work = dist.all_reduce(gradients, async_op=True)
        averaged: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda future: future.value()[0])
        return averaged

    def _settle_buckets(self) -> None:
        """Run a backward pass without effect. DDP regroups its buckets after the first one, and with three ranks the
        order of a sum depends on the bucket: otherwise a resumed run's first step would differ in the last digits."""
        windows = torch.zeros(1, 3, dtype=torch.int64)
        batch = (part.to(self.ranks.device) for part in self.state.model.batch(windows, [0]))
        self.accelerate.backward(self.module(*batch) * 0.0)
        self.state.optimizer.zero_grad()
