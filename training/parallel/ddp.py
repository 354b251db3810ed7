"""The model made ready to train on this rank: IPEX where it is installed, compilation, precision, and DDP.

DDP averages the gradients over the ranks while the backward pass still runs. It is put around the model last, after
whatever may replace its parameters: a published trainer leaves it out with IPEX, and its ranks train apart.
"""

# No `from __future__ import annotations` here: DDP compares the annotations of its hook with the types themselves.

import contextlib
import importlib.util
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn

from training import optimizer as optim
from training.checkpoint.state import State
from training.job import Job
from training.parallel.ranks import Ranks


class Wrapped:
    """What the training loop calls: forward and backward of a micro batch, and the optimizer's step."""

    def __init__(self, job: Job, state: State, ranks: Ranks, mixed: str) -> None:
        self.accelerator = Accelerator(
            mixed_precision=mixed,
            cpu=ranks.device.type == "cpu",
            kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
        )
        self.module = state.model
        self.last_bucket = 0.0
        """When the last gradients of this rank were ready to be sent."""
        if self.uses_ipex:
            _apply_ipex(state)
        if job.train.compile:
            state.model.compile()
        self.model: nn.Module = self.accelerator.prepare_model(state.model)
        self.optimizer = self.accelerator.prepare_optimizer(state.optimizer, device_placement=False)
        optim.check_fused(state.optimizer)
        if state.scaler is not None and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state.scaler)
        self.clip = job.train.clip or float("inf")
        if ranks.size > 1:
            self.model.register_comm_hook(None, self._average)
            self._settle_buckets(ranks.device)

    @property
    def uses_ipex(self) -> bool:
        return self.accelerator.device.type == "cpu" and bool(importlib.util.find_spec("intel_extension_for_pytorch"))

    def micro_step(self, inputs: torch.Tensor, targets: torch.Tensor, scale: float, *, last: bool) -> torch.Tensor:
        """Adds a micro batch's gradients, averaged over the ranks with the last one. Returns the scaled loss."""
        together = contextlib.nullcontext() if last else self.accelerator.no_sync(self.model)
        with together:
            loss: torch.Tensor = self.model(inputs, targets) * scale
            self.accelerator.backward(loss)
        return loss.detach()

    def update(self) -> float:
        """Clips, steps, clears; returns the gradient norm from before."""
        norm = self.accelerator.clip_grad_norm_(self.module.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm)

    def exposed(self) -> float:
        """Seconds that the backward pass, which has just ended, waited for others after its own work. Known on a CPU
        only: a GPU runs behind."""
        if not self.last_bucket or self.accelerator.device.type != "cpu":
            return 0.0
        seconds, self.last_bucket = time.perf_counter() - self.last_bucket, 0.0
        return seconds

    def scaler_state(self) -> dict[str, Any] | None:
        scaler = self.accelerator.scaler
        return None if scaler is None else dict(scaler.state_dict())

    def _average(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """DDP's own averaging, with the time noted."""
        gradients = bucket.buffer().div_(dist.get_world_size())
        if bucket.is_last():
            self.last_bucket = time.perf_counter()
        work = dist.all_reduce(gradients, async_op=True)
        averaged: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda future: future.value()[0])
        return averaged

    def _settle_buckets(self, device: torch.device) -> None:
        """DDP sorts gradients into other buckets after its first backward pass, and with three ranks the order of a
        sum depends on the bucket. A pass for nothing makes the first step of a resumed run like any other."""
        tokens = torch.zeros(1, 2, dtype=torch.int64, device=device)
        self.micro_step(tokens, tokens, 0.0, last=True)
        self.optimizer.zero_grad()


def _apply_ipex(state: State) -> None:
    """IPEX's kernels on plain parameters: packed weights would make checkpoints and hashes machine-dependent."""
    import intel_extension_for_pytorch as ipex

    # Its own kernel for layer norm brings the warning; losses were compared with plain torch's, digit by digit.
    warnings.filterwarnings("ignore", message="aten::layer_norm: an autograd kernel was not registered")
    ipex.optimize(
        state.model.train(),
        optimizer=state.optimizer,
        dtype=torch.float32,
        inplace=True,
        weights_prepack=False,
        fuse_update_step=False,  # torch's AdamW is fused itself
    )
