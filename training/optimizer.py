"""The optimizer: AdamW, or Muon for the blocks' matrices and AdamW for the rest; and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.models.base import Model
from training.parallel.shard import local
from training.sections import TrainSection


def learning_rate(train: TrainSection, step: int) -> float:
    """The learning rate of a step (the first is 1): a linear warm-up, then train.schedule, which ends at min_lr. A
    function of only the step, so a resumed run has the same. The polynomial is fairseq's polynomial_decay, whose
    warm-up reaches lr with its last step; with the cosine the step after has it."""
    cosine = train.schedule == "cosine"
    if step <= train.warmup:
        return train.lr * step / (train.warmup + cosine)
    progress = min(1.0, (step - train.warmup) / max(1, (train.decay_steps or train.steps) - train.warmup))
    remaining = 0.5 * (1 + math.cos(math.pi * progress)) if cosine else (1 - progress) ** train.power
    return train.min_lr + remaining * (train.lr - train.min_lr)


class MuonAndAdamW(torch.optim.Optimizer):
    """torch's Muon for the matrices of the blocks, AdamW for the rest.

    Muon orthogonalises each matrix's momentum (https://kellerjordan.github.io/posts/muon/), which takes 5 * (4 m n^2 +
    2 n^3) operations for a matrix of n x m, n the smaller. The ranks share that work: each updates some of the
    matrices, and sends the new values to the others. So they agree even if their matmuls differ in the last digits. The
    ranks of an elastic job each update all of them.
    """

    def __init__(self, matrices: list[Tensor], train: TrainSection, adamw: torch.optim.AdamW) -> None:
        self.adamw = adamw
        self.muon = torch.optim.Muon(matrices, lr=train.muon_lr, weight_decay=train.weight_decay)
        for group in self.muon.param_groups:
            group["lr_ratio"] = train.muon_lr / train.lr
        super().__init__([*self.muon.param_groups, *adamw.param_groups], {})
        self.muon.state = adamw.state = self.state
        for matrix in matrices:
            self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
        self.share_work(0, 1)

    def share_work(self, rank: int, ranks: int) -> None:
        """Divide the matrices among the ranks, so that each has about the same work."""
        self.rank = rank
        self.shares: list[list[Tensor]] = [[] for _ in range(ranks)]
        work = [0.0] * ranks
        for group in self.muon.param_groups:
            for matrix in sorted(group["params"], key=_operations, reverse=True):
                least = work.index(min(work))
                self.shares[least].append(matrix)
                work[least] += _operations(matrix)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Update all parameters. Collective."""
        momentum = self.muon.param_groups[0]["momentum"]
        for rank, matrices in enumerate(self.shares):
            if rank != self.rank:  # only their momentum, as torch does it: every rank can write a checkpoint
                for matrix in matrices:
                    self.state[matrix]["momentum_buffer"].lerp_(matrix.grad, 1 - momentum)
                    matrix.grad = None
        self.muon.step()
        self.adamw.step()
        if len(self.shares) > 1:
            self._exchange()

    def _exchange(self) -> None:
        """Send this rank's matrices to the others, and receive theirs."""
        messages = [torch.cat([matrix.flatten() for matrix in share]) for share in self.shares if share]
        pending = [dist.broadcast(values, src=rank, async_op=True) for rank, values in enumerate(messages)]
        for share, values, work in zip(self.shares, messages, pending, strict=False):
            work.wait()
            for matrix, new in zip(share, values.split([matrix.numel() for matrix in share]), strict=True):
                matrix.copy_(new.view_as(matrix))


def _operations(matrix: Tensor) -> float:
    smaller, larger = sorted(matrix.shape)
    return 4.0 * larger * smaller**2 + 2.0 * smaller**3


def build(model: Model, train: TrainSection) -> torch.optim.Optimizer:
    """The job's optimizer, with weight decay on the parameters that the model names."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    matrices = []
    if train.optimizer == "muon":
        in_blocks = {id(p) for p in model.blocks.parameters() if p.dim() == 2}
        matrices = [parameters.pop(name) for name in list(parameters) if id(parameters[name]) in in_blocks]
    groups = [
        {"params": [p for name, p in parameters.items() if model.decays(name, p)], "weight_decay": train.weight_decay},
        {"params": [p for name, p in parameters.items() if not model.decays(name, p)], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=train.lr,
        betas=(train.beta1, train.beta2),
        eps=train.epsilon,
        fused=not any(p.is_meta for p in parameters.values()),  # those of a model that is not sharded yet
    )
    if adamw.defaults["fused"]:
        check_fused(adamw)
    return MuonAndAdamW(matrices, train, adamw) if matrices else adamw


def name_of(optimizer: torch.optim.Optimizer) -> str:
    """The value of train.optimizer that makes this optimizer."""
    return "muon" if isinstance(optimizer, MuonAndAdamW) else "adamw"


def check_fused(optimizer: torch.optim.Optimizer) -> None:
    """RuntimeError if a group of AdamW's is not fused any more. Loading or wrapping can lose the setting, and AdamW
    then takes 5 times as long without a warning."""
    if not all(group["fused"] for group in optimizer.param_groups if "betas" in group):
        raise RuntimeError("AdamW is not fused: a group of its parameters has lost the setting")


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the rate of every group; Muon's follows AdamW's in a constant ratio."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_ratio", 1.0)


def _moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor, tuple[str, ...]]]:
    """Each parameter with its name and the names of the moments that its group keeps."""
    by_muon = {id(p) for group in optimizer.param_groups if "momentum" in group for p in group["params"]}
    for name, parameter in model.named_parameters():
        yield name, parameter, ("momentum_buffer",) if id(parameter) in by_muon else ("exp_avg", "exp_avg_sq")


def tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's moments by name, such as `exp_avg.blocks.0...`, and the `step` that AdamW's parameters share."""
    out: dict[str, Tensor] = {"step": torch.zeros(())}
    for name, parameter, moments in _moments(model, optimizer):
        state = optimizer.state[parameter]
        for moment in moments:
            out[f"{moment}.{name}"] = state[moment] if moment in state else torch.zeros_like(parameter)
        out["step"] = state.get("step", out["step"])
    return out


def restore(model: nn.Module, optimizer: torch.optim.Optimizer, saved: Mapping[str, Tensor]) -> None:
    """Load what `tensors` returned; of a sharded model this rank's rows of it. The fused kernel needs the step on the
    parameter's own device."""
    step = saved["step"]
    for name, parameter, moments in _moments(model, optimizer):
        state: dict[str, Any] = {moment: torch.zeros_like(parameter).detach() for moment in moments}
        for moment, values in state.items():
            local(values).copy_(saved[f"{moment}.{name}"])
        if "exp_avg" in state:
            state["step"] = step.clone().to(parameter.device)
        optimizer.state[parameter] = state
    check_fused(optimizer)
