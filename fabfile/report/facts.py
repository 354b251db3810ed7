"""A run's facts: what its report is made of, and what follows from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from node.run_data import number

PARTS = ("compute", "communication", "data", "eval", "checkpoint")
"""What the trainer's seconds are called; whatever else there is counts as other."""


@dataclass(frozen=True)
class Point:
    """A step, or several of a long run."""

    step: float
    steps: int = 1
    time: float | None = None
    tokens: float | None = None
    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    tokens_per_s: float | None = None
    peak_share: float | None = None
    rank_seconds: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Validation:
    step: float
    loss: float
    bits_per_byte: float | None = None


@dataclass(frozen=True)
class Attempt:
    """A start of the job: the first, or a restart."""

    time: float
    nodes: tuple[str, ...]
    after_step: float | None = None
    """The step whose checkpoint it went on from; None: it began, or did no step."""


@dataclass(frozen=True)
class Machine:
    """A node, as its ready.json tells of it; `reason`: why there is none."""

    name: str
    ready: Mapping[str, Any]
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Run:
    id: str
    state: str = "UNKNOWN"
    reason: str = ""
    nodes: tuple[str, ...] = ()
    """At the end; lost ones are not among them."""
    all_nodes: tuple[str, ...] = ()
    slots: Mapping[str, int]
    """Ranks of each node."""
    started: float | None = None
    ended: float | None = None
    """None: it goes on."""
    now: float = 0.0
    paused: float = 0.0
    """Seconds between its end and its being gone on with."""
    hourly_usd: float | None = None
    """Of its nodes together."""
    job_toml: str = ""
    config: Mapping[str, Any]
    """section.key -> value."""
    points: tuple[Point, ...] = ()
    validations: tuple[Validation, ...] = ()
    best: Validation | None = None
    totals: Mapping[str, float]
    width: int = 1
    """Steps that a point stands for."""
    skipped: int = 0
    """Lines of metrics that could not be read."""
    attempts: tuple[Attempt, ...] = ()
    notes: tuple[tuple[float, str, str], ...] = ()
    """When, who, what: the lines of the log that tell how it went."""
    notes_left_out: int = 0
    on_disk: tuple[int, ...] = ()
    best_on_disk: float | None = None
    precision: str = ""
    usage: Mapping[str, Sequence[tuple[float, float | None, float | None, float | None]]] = field(default_factory=dict)
    """Node -> (Unix time, cores busy, GiB of memory, MB/s of network)."""
    samples: tuple[tuple[str, str], ...] = ()
    """(model, text) of what was sampled from it, the newest last."""
    command: str = ""
    machines: tuple[Machine, ...] = ()

    @property
    def duration(self) -> float | None:
        if self.started is None:
            return None
        return max(0.0, (self.now if self.ended is None else self.ended) - self.started - self.paused)

    @property
    def cost(self) -> float | None:
        return None if self.duration is None or self.hourly_usd is None else self.duration / 3600 * self.hourly_usd

    @property
    def ranks(self) -> int | None:
        known = len(self.points[0].rank_seconds) if self.points else 0
        return known or sum(self.slots.get(node, 1) for node in self.all_nodes) or None

    @property
    def last(self) -> Point:
        return self.points[-1] if self.points else Point(0)

    @property
    def steps(self) -> float | None:
        """How many there are to be."""
        return number(self.config.get("train.steps"))

    @property
    def tokens(self) -> float | None:
        batch = number(self.config.get("train.global_batch_tokens"))
        return self.last.tokens if self.last.tokens is not None or batch is None else self.last.step * batch


def dict_of(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = record.get(key)
    return found if isinstance(found, dict) else {}


def list_of(record: Mapping[str, Any], key: str) -> list[Any]:
    found = record.get(key)
    return found if isinstance(found, list) else []


def shown(value: object) -> str:
    """A value of the configuration, as TOML has it."""
    return value if isinstance(value, str) and value else json.dumps(value, default=str)
