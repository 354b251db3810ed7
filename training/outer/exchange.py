"""One round's exchange through the bucket, in a thread beside the training of rank 0: put this cluster's differences
there, wait for the others', end the round, and fetch what the clusters that took part have sent.

While the bucket cannot be reached the thread tries again, for as long as a cluster waits for the others.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from training.outer.rounds import Rounds
from training.outer.state import Parts
from training.parallel.peers import plain
from training.sections import OuterSection
from training.store.bucket import StoreError, plain_errors

_SOONEST, _LATEST = 0.2, 2.0  # seconds between two looks at the bucket: the longer, the longer it has waited
_TRY_AGAIN = 2.0  # seconds between two attempts to reach it

_Result = TypeVar("_Result")


class DifferentError(RuntimeError):
    """Clusters that do not train the same model: one line."""


@dataclass(frozen=True)
class Own:
    """What this cluster brings to a round."""

    number: int
    raw: bytes
    """Its packed differences."""
    weight: int
    base: str
    """The digest of the parameters with which it began the round."""
    run: str
    """The name of its run directory: the job's id."""
    state: Callable[[], bytes] | None = None
    """The outer state after the round before, if it is to be put into the bucket."""


class Exchange:
    """A round's exchange under way: it begins when it is made. Its attributes are for the caller once `ended` says so;
    `missing` and `runs`, for messages, before that as well. `say` is called in its thread."""

    def __init__(self, outer: OuterSection, rounds: Rounds, own: Own, say: Callable[[str], None]) -> None:
        self.outer, self.rounds, self.own, self._say = outer, rounds, own, say
        self.parts: Parts | None = None
        """When it has ended: what the clusters have sent; None if the round has ended without this one."""
        self.problem = ""
        """When it has ended: why it failed."""
        self.missing = list(range(1, outer.clusters + 1))
        """The clusters whose differences are not there yet."""
        self.runs: dict[int, str] = {}
        """The other clusters' runs, by cluster, as far as they have sent something."""
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._work, name="exchange", daemon=True)
        self._thread.start()

    def ended(self, seconds: float) -> bool:
        """Whether it has ended, after waiting for that for so long."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def hurry(self) -> None:
        """Wait no longer for the others: end the round with those who are there."""
        self._hurry.set()

    def _work(self) -> None:
        try:
            self._exchange()
        except Exception as error:  # noqa: BLE001 (reported as `problem`; the thread has no caller)
            self.problem = plain(error)

    def _exchange(self) -> None:
        own, number = self.outer.cluster, self.own.number
        closed = self._reached(lambda: self.rounds.closed(number))
        if closed is None:
            facts = ("run", "weight", "base")
            about = {"cluster": own, "bits": self.outer.bits, **{name: getattr(self.own, name) for name in facts}}
            self._reached(lambda: self.rounds.publish(number, own, self.own.raw, about))
            self._reached(self._keep_state)
            closed = self._wait()
        if own in closed:
            self.parts = self._reached(lambda: fetched(self.rounds, number, closed, self.own.raw))
            if self.parts is None:
                raise StoreError(f"{self.rounds.place.url}: what was sent for round {number} has been removed")

    def _wait(self) -> list[int]:
        """Wait until all clusters' differences are there, or `outer.wait` is over; end the round with those that are.
        Returns the clusters that took part."""
        until = time.monotonic() + self.outer.wait
        pause = _SOONEST
        while True:
            self._reached(self._look)
            if not self.missing or time.monotonic() >= until or self._hurry.is_set():
                return self._reached(self._close)
            closed = self._reached(lambda: self.rounds.closed(self.own.number))
            if closed is not None:
                return closed
            self._hurry.wait(min(pause, max(0.0, until - time.monotonic())))
            pause = min(1.5 * pause, _LATEST)

    def _look(self) -> None:
        """Look which clusters' differences are still missing. DifferentError if one trains another model."""
        records = {each: self.rounds.published(self.own.number, each) for each in self.missing}
        for each, record in records.items():
            if record is not None and record["base"] != self.own.base:
                began = f"{named(self.outer, each)} began it with other parameters than this cluster"
                raise DifferentError(f"outer.exchange = {self.outer.exchange}: round {self.own.number}: {began}")
            if record is not None:
                self.runs[each] = str(record.get("run", ""))
        self.missing = [each for each, record in records.items() if record is None]

    def _close(self) -> list[int]:
        there = [each for each in range(1, self.outer.clusters + 1) if each not in self.missing]
        return self.rounds.close(self.own.number, there)

    def _keep_state(self) -> None:
        """Put the outer state after the round before there, if it is due and this is the first of its clusters; then
        remove what nobody needs beside it."""
        before = self.own.number - 1
        if self.own.state is None or min(self.rounds.closed(before) or [0]) != self.outer.cluster:
            return
        self.rounds.publish_state(before, self.own.state())
        older = before - self.outer.keep
        if older in self.rounds.states():
            self.rounds.remove_before(older)

    def _reached(self, work: Callable[[], _Result]) -> _Result:
        """What `work` returns; tried again while the bucket cannot be reached. StoreError, DifferentError."""
        until = time.monotonic() + self.outer.wait
        said = False
        while True:
            try:
                with plain_errors(self.outer.exchange):
                    return work()
            except StoreError as error:
                cause: Any = error.__cause__
                if isinstance(cause, DifferentError):
                    raise cause from None
                if time.monotonic() >= until:
                    raise
                if not said:
                    self._say(f"round {self.own.number}: {error}; trying again for {self.outer.wait} s")
                said = True
            time.sleep(_TRY_AGAIN)


def named(outer: OuterSection, number: int) -> str:
    """`cluster 2`, or its name: `cluster aws-xeon`."""
    return f"cluster {outer.names.split(',')[number - 1] if outer.names else number}"


def fetched(rounds: Rounds, number: int, clusters: list[int], own: bytes = b"") -> Parts | None:
    """What these clusters have sent for a round; None if some of it has been removed. What is `own` is not fetched."""
    digest = hashlib.sha256(own).hexdigest()
    parts = {}
    for each in clusters:
        record = rounds.published(number, each)
        is_own = record is not None and record["sha256"] == digest
        raw = own if is_own else None if record is None else rounds.difference(number, record)
        if record is None or raw is None:
            return None
        parts[each] = (int(record["weight"]), raw)
    return parts


@dataclass(frozen=True)
class Missed:
    """How a cluster gets over a round that has ended without it; nothing, if it has not ended."""

    parts: Parts | None = None
    number: int = 0
    """If what was sent has been removed: of a later round, after which this is the outer state."""
    state: bytes = b""


def missed(rounds: Rounds, number: int) -> Missed:
    """What is there of a round. StoreError if it has ended, and neither what was sent for it nor a later state is."""
    closed = rounds.closed(number)
    if closed is None:
        return Missed()
    if (parts := fetched(rounds, number, closed)) is not None:
        return Missed(parts)
    for later in rounds.states():
        if later >= number and (raw := rounds.state(later)) is not None:
            return Missed(None, later, raw)
    gone = f"what was sent for round {number} has been removed, and there is no later state"
    raise StoreError(f"{rounds.place.url}: {gone}")
