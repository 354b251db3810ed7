"""What a rank keeps in memory of a run while the world of an elastic job changes: like a checkpoint, without a disk.

In the new world a rank takes it from its own memory, or, if it has none or is a step behind, from a rank that has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.checkpoint import state as states
from training.checkpoint.files import part_file
from training.checkpoint.state import Saved, TrainingState
from training.data.token_set import TokenSet
from training.metrics import Lines
from training.parallel import Parallelism
from training.parallel.ranks import Ranks


class InMemory(dict[str, Tensor]):
    """Tensors by name, as training.checkpoint.reader.Part has them."""

    def rows(self, name: str, first: int, last: int) -> Tensor:
        """The rows [first, last) of a tensor."""
        return self[name][first:last]


@dataclass(frozen=True)
class Carried:
    """The run as this rank knows it after a step."""

    step: int
    state: Mapping[str, Any]
    """As in state.json of a checkpoint."""
    parts: Mapping[str, InMemory]
    """`model` and `optimizer`: the whole tensors by their names in a checkpoint."""
    generators: Mapping[str, Tensor]
    """States of this rank's random generators."""


def of(state: TrainingState, data: TokenSet, parallel: Parallelism, device: torch.device, made: object) -> Carried:
    """The run as it is on this rank; `made` is what is known of its last step. Nothing is copied."""
    tensors = parallel.tensors(optimizer=True)
    return Carried(
        step=state.step,
        state={**states.described(state, data), "made": made},
        parts={name: InMemory(tensors[part_file(name)]) for name in ("model", "optimizer")},
        generators=states.own_generators(device),
    )


def newest(ranks: Ranks, carried: Carried | None) -> Saved | None:
    """What to go on from: the newest step that a rank of this world carries; None if none does. Collective."""
    own = carried.step if carried else -1
    steps = [int(step) for step in ranks.gather(torch.tensor(own))] if ranks.size > 1 else [own]
    last = max(steps)
    if last < 0:
        return None
    source = steps.index(last)
    has_it = carried is not None and own == last
    state = json.dumps(carried.state).encode() if carried and has_it else b""
    if ranks.size > 1:
        state = ranks.broadcast_bytes(state, source)
    return Saved(
        state=json.loads(state),
        generators=dict(carried.generators) if carried else None,
        parts=carried.parts if carried and has_it else {},
        source=source,
        send=min(steps) < last,
    )


def share_lines(lines: Lines | None, ranks: Ranks) -> int:
    """Give every rank that writes `lines` those of the steps that were made without it. Returns the step of the last
    line that any rank has. Collective."""
    last = -1 if lines is None else lines.last()
    have = [int(step) for step in ranks.gather(torch.tensor(last))]
    writers = [step for step in have if step >= 0]
    if min(writers) < max(writers):
        source = have.index(max(have))
        own = lines.after(min(writers)) if lines is not None and ranks.rank == source else ""
        text = ranks.broadcast_bytes(own.encode(), source).decode()
        if lines is not None:
            lines.take(text)
    return max(writers)
