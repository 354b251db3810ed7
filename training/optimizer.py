"""The optimizer: AdamW, fused, with weight decay on matrices only; and the learning rate of each step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from training.job import Train
from training.models.base import Model


def learning_rate(train: Train, step: int) -> float:
    """The learning rate of a step (the first is 1): a linear warm-up, then a cosine that ends at min_lr with the last
    step. A function of the step alone, so a resumed run has the same."""
    if step <= train.warmup:
        return train.lr * step / (train.warmup + 1)
    progress = (step - train.warmup) / max(1, train.steps - train.warmup)
    return train.min_lr + 0.5 * (1 + math.cos(math.pi * progress)) * (train.lr - train.min_lr)


def build(model: Model, train: Train) -> torch.optim.AdamW:
    """AdamW with the job's settings, and weight decay on the parameters that the model names."""
    parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for name, p in parameters if model.decays(name, p)], "weight_decay": train.weight_decay},
        {"params": [p for name, p in parameters if not model.decays(name, p)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=train.lr,
        betas=(train.beta1, train.beta2),
        fused=True,
    )
    check_fused(optimizer)
    return optimizer


def check_fused(optimizer: torch.optim.Optimizer) -> None:
    """RuntimeError if a group is not fused any more. Loading or wrapping can lose the setting, and AdamW then takes 5
    times as long without a warning."""
    if not all(group["fused"] for group in optimizer.param_groups):
        raise RuntimeError("AdamW is not fused: a group of its parameters has lost the setting")


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr


MOMENTS = ("exp_avg", "exp_avg_sq")


def tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's moments by name, such as `exp_avg.blocks.0...`, and the `step` that all parameters share."""
    out: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        for moment in MOMENTS:
            out[f"{moment}.{name}"] = state[moment] if moment in state else torch.zeros_like(parameter)
        out["step"] = state["step"] if "step" in state else torch.zeros(())
    return out


def restore(model: nn.Module, optimizer: torch.optim.Optimizer, saved: dict[str, Tensor]) -> None:
    """Load what `tensors` returned. The fused kernel needs the step on the parameter's own device."""
    for name, parameter in model.named_parameters():
        state: dict[str, Any] = {moment: saved[f"{moment}.{name}"].to(parameter.device) for moment in MOMENTS}
        state["step"] = saved["step"].clone().to(parameter.device)
        optimizer.state[parameter] = state
    check_fused(optimizer)
