"""The records that a run's report is made from, and the values derived from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from node.run_data import number

PARTS = ("compute", "communication", "exchange", "data", "eval", "checkpoint")
"""The parts of the time that the trainer measures; the rest of a job's time is `other`."""
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
    perplexity: float | None = None
    """Of the masked tokens; a masked model has no bits per byte."""


@dataclass(frozen=True)
class JobStart:
    """A start of the job: the first, or a restart."""

    time: float
    nodes: tuple[str, ...]
    after_step: float | None = None
    """The step of the checkpoint that it continued from; None for the first start and for one that did no step."""
    end: str = ""
    """Why it failed: the supervisor's error; empty: it did not, or has not ended."""


@dataclass(frozen=True)
class NodeFacts:
    """A node with its ready.json; `reason` says why that is missing."""

    name: str
    ready: Mapping[str, Any]
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class JobRun:
    """A run of a job. Times are in Unix seconds; None means not known."""

    id: str
    state: str = "UNKNOWN"
    reason: str = ""
    nodes: tuple[str, ...] = ()
    """Its nodes at the end, without lost ones."""
    all_nodes: tuple[str, ...] = ()
    slots: Mapping[str, int]
    """Ranks of each node."""
    started: float | None = None
    ended: float | None = None
    """None while it runs."""
    now: float = 0.0
    paused: float = 0.0
    """Total seconds between its ends and its resumptions."""
    hourly_usd: float | None = None
    """US dollars per hour for all its nodes."""
    job_toml: str = ""
    config: Mapping[str, Any]
    """section.key -> value."""
    points: tuple[Point, ...] = ()
    validations: tuple[Validation, ...] = ()
    best: Validation | None = None
    totals: Mapping[str, float]
    """Seconds by part, see PARTS."""
    program: str = ""
    """The command of the user's program that it ran; empty: the trainer."""
    exit_code: int | None = None
    beats: float | None = None
    """The last step of which a program's heartbeats on the head tell."""
    lines: tuple[tuple[float, str, str], ...] = ()
    """(time, who, text) of the last lines of a program's log."""
    clusters: Mapping[str, Any] = field(default_factory=dict)
    """Of a job that several clusters train together: who they are, rounds, bytes and seconds (node/run_data.py)."""
    width: int = 1
    """Steps per point."""
    skipped: int = 0
    """Lines of metrics that could not be read."""
    attempts: tuple[JobStart, ...] = ()
    notes: tuple[tuple[float, str, str], ...] = ()
    """(time, who, text) of the log's important lines."""
    notes_omitted: int = 0
    decisions: tuple[tuple[float, str, float | None], ...] = ()
    """(time, text, US dollars spent until then) of each decision of its manager, if it was managed."""
    on_disk: tuple[int, ...] = ()
    """Steps whose checkpoints still exist."""
    best_on_disk: float | None = None
    precision: str = ""
    usage: Mapping[str, Sequence[Usage]] = field(default_factory=dict)
    samples: tuple[tuple[str, str], ...] = ()
    """(model, text) of its samples, the newest last."""
    command: str = ""
    """The command line that runs the job again."""
    machines: tuple[NodeFacts, ...] = ()

    @property
    def duration(self) -> float | None:
        """Seconds of running, without pauses."""
        if self.started is None:
            return None
        return max(0.0, (self.now if self.ended is None else self.ended) - self.started - self.paused)

    @property
    def cost(self) -> float | None:
        """US dollars until now."""
        return None if self.duration is None or self.hourly_usd is None else self.duration / 3600 * self.hourly_usd

    @property
    def ranks(self) -> int | None:
        """The number of ranks at the start."""
        known = len(self.points[0].rank_seconds) if self.points else 0
        return known or sum(self.slots.get(node, 1) for node in self.all_nodes) or None

    @property
    def last(self) -> Point:
        """The newest point; step 0 before the first."""
        return self.points[-1] if self.points else Point(0)

    @property
    def steps(self) -> float | None:
        """The number of steps that the job asks for."""
        return number(self.config.get("train.steps"))

    @property
    def batch(self) -> float | None:
        """Tokens per step."""
        return number(self.config.get("train.global_batch_tokens"))

    @property
    def tokens(self) -> float | None:
        """Tokens trained on until now."""
        if self.last.tokens is not None or self.batch is None:
            return self.last.tokens
        return self.last.step * self.batch

    @property
    def restarts(self) -> int:
        """The number of restarts."""
        return max(0, len(self.attempts) - 1)

    @property
    def speed(self) -> float | None:
        """Tokens per second over all steps: the harmonic mean, as steps of one size differ in their time."""
        known = [(point.steps, point.tokens_per_s) for point in self.points if point.tokens_per_s]
        inverse = sum(steps / rate for steps, rate in known)
        return sum(steps for steps, _ in known) / inverse if inverse else None

    @property
    def peak_share(self) -> float | None:
        """The mean fraction of the processors' peak matmul speed, from 0 to 1."""
        known = [(point.steps, point.peak_share) for point in self.points if point.peak_share is not None]
        return sum(steps * share for steps, share in known) / sum(steps for steps, _ in known) if known else None

    def node_speeds(self) -> dict[str, list[tuple[float, float]]]:
        """(step, tokens per second) of each node: its tokens of a step divided by its ranks' computing time, without
        waiting for the others. Empty if the ranks' nodes or the batch size are not known."""
        block = number(self.config.get("model.block_size"))
        if not self.batch or not block:
            return {}
        windows = self._own_windows(int(self.batch // block))
        found: dict[str, list[tuple[float, float]]] = {}
        for point in self.points:
            placement = self._placement(point.time, len(point.rank_seconds))
            slowest: dict[str, float] = {}
            tokens: dict[str, float] = {}
            for rank, (node, seconds) in enumerate(zip(placement, point.rank_seconds, strict=False)):
                share = windows * (rank + 1) // len(placement) - windows * rank // len(
                    placement
                )  # as the trainer splits
                tokens[node] = tokens.get(node, 0.0) + share * block
                slowest[node] = max(slowest.get(node, 0.0), seconds or 0.0)
            for node, seconds in slowest.items():
                if seconds:
                    found.setdefault(node, []).append((point.step, tokens[node] / seconds))
        return found

    @property
    def own_share(self) -> float:
        """The share of a step's tokens that this cluster trains on: 1 if no other one trains with it. Its tokens per
        second are of these alone, while `Point.tokens` and the batch are all clusters'."""
        block = number(self.config.get("model.block_size"))
        windows = int((self.batch or 0) // block) if block else 0
        return self._own_windows(windows) / windows if windows else 1.0

    def _own_windows(self, windows: int) -> int:
        """Of a step's windows, those that this cluster trains on, as the trainer splits them."""
        clusters, own = (int(number(self.config.get(f"outer.{name}")) or 1) for name in ("clusters", "cluster"))
        named = [int(each) for each in str(self.config.get("outer.shares") or "").split(",") if each.isdigit()]
        shares = named if len(named) == clusters else [1] * clusters
        return windows * sum(shares[:own]) // sum(shares) - windows * sum(shares[: own - 1]) // sum(shares)

    def _placement(self, when: float | None, ranks: int) -> list[str]:
        """The node of each rank at that time; empty if not known."""
        before = [attempt.nodes for attempt in self.attempts if when is not None and attempt.time <= when]
        nodes = before[-1] if before else self.nodes
        placement = [node for node in nodes for _ in range(self.slots.get(node, 1))]
        return placement if len(placement) == ranks else []
