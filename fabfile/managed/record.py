"""What a manager remembers of its job, on the operator's machine: ~/.trainyard/STACK/managed/JOB.json, and its lock.

A manager that is started again goes on with it: the bounds, the money, the tries, and the decisions that the head does
not have yet.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import math
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit

from fabfile.managed.bounds import Bounds, spent
from fabfile.remote.known_hosts import MANAGED, directory, write


@dataclass
class Record:
    """A managed job as its manager knows it. Times are seconds of Unix time."""

    job: str
    stack: str
    nodes: int  # the job's full size
    began: float
    bounds: Bounds = field(default_factory=Bounds)
    zones: list[str] = field(default_factory=list)  # beside the stack's own
    types: list[str] = field(default_factory=list)
    prices: list[tuple[float, float]] = field(default_factory=list)
    """(from when, US dollars an hour for the whole job)"""
    earlier: int = 0  # tries before the job was taken from its bucket by a new head
    first_attempt: int = 1
    replaced: int = 0  # replacements that were begun, each of one or more nodes
    resized: int = 0  # how often the job was asked to go on on other nodes
    decisions: list[dict[str, Any]] = field(default_factory=list)
    """{"time", "text", "usd"}: all, the oldest first."""
    sent: int = 0  # how many of the decisions the head has
    manager: str = ""  # who managed it last
    resume: bool = False  # whether it is to be started again, whatever ended it; until that is done
    paused_until: float = 0.0  # until when the time since its end is accounted for

    def tries(self, attempt: int) -> int:
        """Replacements, and restarts until this attempt. Going on on other nodes is no restart."""
        return self.earlier + self.replaced + max(0, attempt - self.first_attempt - self.resized)

    def usd(self, now: float) -> float:
        """What the job's nodes have cost since its start."""
        return spent(self.prices, now)

    def hours(self, now: float) -> float:
        """Since the job's start."""
        return (now - self.began) / 3600

    def pause(self, since: float, now: float) -> None:
        """The job has not run since then: that counts neither as time nor as cost, once."""
        seconds = max(0.0, now - max(since, self.paused_until))
        self.paused_until = now
        self.began += seconds
        self.prices = [(since + seconds, usd) for since, usd in self.prices]

    def decide(self, text: str) -> None:
        """Add a decision, with its time and the money spent until then."""
        now = time.time()
        self.decisions.append({"time": round(now, 3), "text": text, "usd": round(self.usd(now), 4)})
        self.save()

    def save(self) -> None:
        """Write the record, atomically."""
        table = asdict(self)
        # A bound that is not set is null in JSON.
        table["bounds"] = {key: None if value == math.inf else value for key, value in table["bounds"].items()}
        write(path_of(self.stack, self.job), json.dumps(table, indent=1))


def path_of(stack: str, job: str) -> Path:
    """The record's file."""
    return directory(stack) / MANAGED / f"{job}.json"


def load(stack: str, job: str) -> Record | None:
    """The record of a job that was managed from here before; None: there is none. Exit 2 for one that is damaged."""
    path = path_of(stack, job)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        known = {each.name: found[each.name] for each in fields(Record) if each.name in found}
        bounds: dict[str, Any] = {
            key: math.inf if value is None else value for key, value in known.pop("bounds").items()
        }
        prices = [(float(since), float(usd)) for since, usd in known.pop("prices")]
        return Record(**known, bounds=Bounds(**bounds), prices=prices)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Exit(f"{path}: not a managed job's record ({error}): remove it to manage {job} anew", code=2) from None


def me() -> str:
    """Who manages a job in this process, for others to read: `ann@laptop (process 4711)`."""
    return f"{getpass.getuser()}@{socket.gethostname()} (process {os.getpid()})"


@contextmanager
def held(stack: str, job: str) -> Iterator[None]:
    """Hold the job for this process, as long as it lives. Exit 1 names the process of this machine that manages it."""
    path = path_of(stack, job).with_suffix(".lock")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise Exit(f"{job} is managed by {lock.read().strip() or 'another process here'}", code=1) from None
        lock.truncate(0)
        lock.write(me())
        lock.flush()
        try:
            yield
        finally:
            lock.truncate(0)


def forget(stack: str, job: str) -> None:
    """Remove what is known of a job that has ended well."""
    for path in (path_of(stack, job), path_of(stack, job).with_suffix(".lock")):
        path.unlink(missing_ok=True)
    with suppress(OSError):  # other jobs of the stack have theirs there
        path.parent.rmdir()
