"""One rank's part of a training step: forward and backward passes in the job's precision, and the update."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from training import optimizer
from training.checkpoint.state import TrainingState
from training.parallel import Parallelism
from training.sections import TrainSection


class Stepper:
    """Sets up IPEX if it is installed, precision and the parallelism, in that order; then trains."""

    def __init__(self, train: TrainSection, state: TrainingState, parallel: Parallelism, mixed: str) -> None:
        """`mixed` is accelerate's name of the precision: no, bf16, fp16."""
        self.parallel, self.model = parallel, state.model
        self.accelerator = parallel.accelerator(mixed)
        if self.uses_ipex:
            _apply_ipex(state)
        self.module: nn.Module = parallel.wrap(state, self.accelerator)
        self.optimizer = self.accelerator.prepare_optimizer(state.optimizer, device_placement=False)
        optimizer.check_fused(state.optimizer)
        if state.scaler is not None and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state.scaler)
        self.clip = train.clip or float("inf")

    @property
    def uses_ipex(self) -> bool:
        """Not of a model in shards: IPEX replaces modules that fully_shard has to find as they are."""
        whole = not self.parallel.calls_together and self.accelerator.device.type == "cpu"
        return whole and bool(importlib.util.find_spec("intel_extension_for_pytorch"))

    def compile(self) -> None:
        """Compile the model, once for each shape of a batch: one graph for several shapes would compute other digits
        than the graph of the first, and when it is made depends on the steps that this process has seen."""
        self.model.compile(dynamic=False)

    def micro_step(self, batch: tuple[Tensor, ...], scale: float, *, last: bool) -> Tensor:
        """Add a micro batch's gradients; the last one of a step also averages them over the ranks. Returns the loss
        times `scale`."""
        with contextlib.nullcontext() if last else self.parallel.accumulate():
            loss: Tensor = self.module(*batch) * scale
            self.accelerator.backward(loss)
        return loss.detach()

    def update(self) -> float:
        """Clip the gradients, step the optimizer, clear the gradients; returns their norm before clipping."""
        norm = self.parallel.clip(self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm)

    def scaler_state(self) -> dict[str, Any] | None:
        """State of fp16's loss scaling; None in other precisions."""
        scaler = self.accelerator.scaler
        return None if scaler is None else dict(scaler.state_dict())


def _apply_ipex(state: TrainingState) -> None:
    """Use IPEX's kernels without packing the weights, which would make checkpoints and hashes machine-dependent."""
    import intel_extension_for_pytorch as ipex

    # IPEX's layer norm kernel causes this warning. Its losses were compared with plain torch's: the same digits.
    warnings.filterwarnings("ignore", message="aten::layer_norm: an autograd kernel was not registered")
    ipex.optimize(
        state.model.train(),
        optimizer=state.optimizer,
        dtype=torch.float32,
        inplace=True,
        weights_prepack=False,
        fuse_update_step=False,  # torch's AdamW is fused itself
    )
