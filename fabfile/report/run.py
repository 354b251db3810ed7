"""What is known of a run: the records that its report is made from, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from node.run_data import number

PARTS = ("compute", "communication", "data", "eval", "checkpoint")
"""Names of the trainer's seconds; all other seconds of a job count as other."""
Usage = tuple[float, float | None, float | None, float | None]
"""(Unix time, cores busy, GiB of memory, MB/s of network) of a node."""


@dataclass(frozen=True)
class Point:
    """One step, or the mean of several steps of a long run."""

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
    """The validation loss, in nats per token, after a step."""

    step: float
    loss: float
    bits_per_byte: float | None = None


@dataclass(frozen=True)
class Attempt:
    """A start of the job: the first, or a restart."""

    time: float
    nodes: tuple[str, ...]
    after_step: float | None = None
    """The step of the checkpoint that it went on from; None for the first start and for one that did no step."""


@dataclass(frozen=True)
class Machine:
    """A node with its ready.json; `reason` says why there is none."""

    name: str
    ready: Mapping[str, Any]
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of a job. Times are Unix seconds; None is what is not known."""

    id: str
    state: str = "UNKNOWN"
    reason: str = ""
    nodes: tuple[str, ...] = ()
    """Those it had at the end, without lost ones."""
    all_nodes: tuple[str, ...] = ()
    slots: Mapping[str, int]
    """Ranks of each node."""
    started: float | None = None
    ended: float | None = None
    """None while it goes on."""
    now: float = 0.0
    paused: float = 0.0
    """Seconds between its ends and its being resumed."""
    hourly_usd: float | None = None
    """Of all its nodes together."""
    job_toml: str = ""
    config: Mapping[str, Any]
    """section.key -> value."""
    points: tuple[Point, ...] = ()
    validations: tuple[Validation, ...] = ()
    best: Validation | None = None
    totals: Mapping[str, float]
    """Seconds by what they were spent on, see PARTS."""
    width: int = 1
    """How many steps a point stands for."""
    skipped: int = 0
    """Lines of metrics that could not be read."""
    attempts: tuple[Attempt, ...] = ()
    notes: tuple[tuple[float, str, str], ...] = ()
    """(time, who, text): the lines of the log that say how the run went."""
    notes_left_out: int = 0
    on_disk: tuple[int, ...] = ()
    """Steps whose checkpoints are still there."""
    best_on_disk: float | None = None
    precision: str = ""
    usage: Mapping[str, Sequence[Usage]] = field(default_factory=dict)
    samples: tuple[tuple[str, str], ...] = ()
    """(model, text) of what was sampled from it, the newest last."""
    command: str = ""
    """The command line that does the run again."""
    machines: tuple[Machine, ...] = ()

    @property
    def duration(self) -> float | None:
        """Seconds that it has run, without its pauses."""
        if self.started is None:
            return None
        return max(0.0, (self.now if self.ended is None else self.ended) - self.started - self.paused)

    @property
    def cost(self) -> float | None:
        """US dollars until now."""
        return None if self.duration is None or self.hourly_usd is None else self.duration / 3600 * self.hourly_usd

    @property
    def ranks(self) -> int | None:
        """How many ranks it began with."""
        known = len(self.points[0].rank_seconds) if self.points else 0
        return known or sum(self.slots.get(node, 1) for node in self.all_nodes) or None

    @property
    def last(self) -> Point:
        """The newest point; step 0 before the first."""
        return self.points[-1] if self.points else Point(0)

    @property
    def steps(self) -> float | None:
        """How many steps the job asks for."""
        return number(self.config.get("train.steps"))

    @property
    def batch(self) -> float | None:
        """Tokens of a step."""
        return number(self.config.get("train.global_batch_tokens"))

    @property
    def tokens(self) -> float | None:
        """Tokens trained on until now."""
        if self.last.tokens is not None or self.batch is None:
            return self.last.tokens
        return self.last.step * self.batch

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return max(0, len(self.attempts) - 1)
