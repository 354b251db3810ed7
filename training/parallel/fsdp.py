"""Sharded data parallelism: each rank holds some rows of every parameter, gradient and moment, by torch's fully_shard.

A block's rows are gathered from the ranks just before it computes, those of the next block meanwhile, and dropped
after; its gradients are added up and scattered in the backward pass. With replicas, the ranks are in groups that each
have the whole model in shards: rank r has shard r % shards, so neighbours, on one node, gather from each other.

accelerate does fp16's loss scaling and steps the optimizer. Its own wrapper of fully_shard is not used: that begins
with a model that is whole on rank 0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from training import optimizer as optimizers
from training.checkpoint.files import part_file
from training.checkpoint.state import TrainingState
from training.parallel import agreement, recompute
from training.parallel.ranks import Ranks
from training.parallel.shard import Shard, local
from training.parallel.sums import Plan
from training.sections import TrainSection

_COMPUTED_IN = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class FSDP:
    """training.parallel.Parallelism with a model in shards."""

    calls_together = True

    def __init__(self, ranks: Ranks, plan: Plan, train: TrainSection) -> None:
        self.ranks, self.plan, self.train = ranks, plan, train
        self.shard = Shard(ranks.rank % plan.shards, plan.shards)
        self._mesh: DeviceMesh | None = None

    def accelerator(self, mixed: str) -> Accelerator:
        self._computed_in = _COMPUTED_IN[mixed]
        return Accelerator(mixed_precision=mixed, cpu=self.ranks.device.type == "cpu")

    def wrap(self, state: TrainingState, accelerator: Accelerator) -> nn.Module:
        """Shard a model that training.checkpoint.state made: its parameters are on the meta device, and this rank's
        rows of their first values in `state.rows`; without these, after loading a checkpoint, they are not filled."""
        self.state, self.accelerate = state, accelerator
        model: Any = state.model
        if self.train.recompute:
            recompute.apply(model.blocks)
        # Gradients are added up in fp32. Unlike under autocast, the sum of the blocks' outputs is in the precision,
        # too.
        policy = MixedPrecisionPolicy(param_dtype=self._computed_in, reduce_dtype=torch.float32)
        for block in model.blocks:
            fully_shard(block, mesh=self._made_mesh(), mp_policy=policy)
        fully_shard(model, mesh=self._made_mesh(), mp_policy=policy)
        self._prefetch(model)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        model.to_empty(device=self.ranks.device)
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
        for name, parameter in model.named_parameters():
            if name in state.rows:
                local(parameter).copy_(state.rows.pop(name))
        state.optimizer = optimizers.build(model, self.train)
        return state.model

    def accumulate(self) -> contextlib.AbstractContextManager[None]:
        return self._without_messages()

    @contextlib.contextmanager
    def _without_messages(self) -> Iterator[None]:
        """Where whole gradients fit, nothing is sent; else each rank's rows go to it, and only replicas wait."""
        model: Any = self.state.model
        switch = model.set_requires_gradient_sync if self.plan.holds_gradients else model.set_requires_all_reduce
        switch(False)
        try:
            yield
        finally:
            switch(True)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def clip(self, limit: float) -> Tensor:
        """The norm is the root of the sum over all shards of their squares; of a group of replicas each has one."""
        self.accelerate.unscale_gradients()
        gradients = [local(gradient) for gradient in self._gradients()]
        squares = torch.stack(torch._foreach_norm(gradients)).double().square().sum().reshape(1)
        norm = (self.ranks.sum(squares.cpu()) / self.plan.replicas).sqrt()[0].float()
        if not norm <= limit:  # also of a norm that is not a number, which must not stay unseen
            torch._foreach_mul_(gradients, float(limit / (norm + 1e-6)))
        return norm

    def waited(self) -> float:
        return 0.0

    def tensors(self, *, optimizer: bool) -> dict[str, dict[str, Tensor]]:
        """This rank's rows; of replicas the first group's. A parameter with fewer rows than ranks is not in all
        files."""
        if self.ranks.rank >= self.plan.shards:
            return {}
        model = self._resharded()
        parts = {"model": {name: p.detach() for name, p in model.named_parameters()}}
        if optimizer:
            parts["optimizer"] = optimizers.tensors(model, self.state.optimizer)
            if self.shard.index:
                del parts["optimizer"]["step"]
        return {
            part_file(part, self.shard.index, self.shard.count): {
                name: local(value) for name, value in tensors.items() if value.numel() == 1 or local(value).numel()
            }
            for part, tensors in parts.items()
        }

    def check_in_step(self, step: int) -> str:
        """Gather each block's parameters as for a forward pass. All ranks must get the same, each must find its own
        rows in there, and replicas must have equal rows and moments. Returns the digest of what was gathered."""
        model = self._resharded()
        own = dict(model.named_parameters())
        optimizer = optimizers.tensors(model, self.state.optimizer)
        names, rows, equal = ["the optimizer's step"], [agreement.digests([optimizer["step"]])], [True]
        for unit, prefix in [(model, ""), *((block, f"blocks.{n}.") for n, block in enumerate(model.blocks))]:
            unit.unshard()
            # A copy, as the digest reads the memory through numpy, and torch does not free what numpy has seen.
            found = unit.named_parameters(prefix.rstrip("."))
            inside = {name: p.detach().clone() for name, p in found if _is_own(name, prefix)}
            names += inside
            rows.append(agreement.digests(inside.values()))
            equal += [
                torch.equal(self.shard.of(p), local(own[name].detach()).to(p.dtype)) for name, p in inside.items()
            ]
            unit.reshard()
        if self.plan.replicas > 1:
            held = {name: local(value) for name, value in {**own, **optimizer}.items()}
            shards = [rank % self.plan.shards for rank in range(self.ranks.size)]
            agreement.compare(self.ranks, held, step, shards, "shards")
        agreement.check_own(self.ranks, names, equal, step)
        return agreement.compare_digests(self.ranks, names, torch.cat(rows), step, what="gathered parameters")

    def _made_mesh(self) -> DeviceMesh:
        if not dist.is_initialized():  # a single rank, which has no process group of its own
            dist.init_process_group(self.ranks.backend, store=dist.HashStore(), rank=0, world_size=1)
        if self._mesh is None:
            sizes, names = (self.plan.replicas, self.plan.shards), ("replica", "shard")
            first = 0 if self.plan.replicas > 1 else 1
            kind = self.ranks.device.type
            self._mesh = init_device_mesh(kind, sizes[first:], mesh_dim_names=names[first:])
        return self._mesh

    def _prefetch(self, model: Any) -> None:
        """Gather the next block while one computes, in both directions."""
        order = [model, *model.blocks]
        for block, following in pairwise(order):
            block.set_modules_to_forward_prefetch([following])
        for before, block in pairwise(order[1:]):
            block.set_modules_to_backward_prefetch([before])

    def _gradients(self) -> list[Tensor]:
        """This rank's rows of all gradients. RuntimeError if one is missing: it was not sent, or not computed."""
        model = self._resharded()
        missing = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
        if missing:
            raise RuntimeError(f"no gradient of {missing[0]} after the backward pass")
        return [p.grad for p in model.parameters() if p.requires_grad]

    def _resharded(self) -> Any:
        """The model with this rank's rows as its parameters. After a forward pass without a backward one, as of a
        validation, what is outside the blocks is still gathered."""
        model: Any = self.state.model
        model.reshard()
        return model


def _is_own(name: str, prefix: str) -> bool:
    """Whether a parameter belongs to a block with this prefix, or, without one, to none."""
    return bool(prefix) or not name.startswith("blocks.")
