"""What a manager remembers of its job, on the operator's machine: ~/.trainyard/STACK/managed/JOB.json, and its lock.

A manager that is started again goes on with it: the bounds, the money, the tries, and the decisions that the head does
not have yet. Nothing in it is read from a node: whoever runs a job's program can write what its head says.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import math
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit

from fabfile.backends.job_answer import check_job_id
from fabfile.managed.bounds import Bounds, spent
from fabfile.remote.known_hosts import MANAGED, directory, write

_PLACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A zone, or a type of machine."""


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
    counted_until: float = 0.0
    """Until when its time is accounted for: its manager saw it under way then, or counted a pause until then."""
    text: str = ""
    """The job file that was named on this machine, resolved; empty: the job was begun without one from here."""

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
        """The job has not run since then: that counts neither as time nor as cost, once. `since` is the head's word:
        what the manager itself has counted before stays counted."""
        seconds = max(0.0, now - max(since, self.counted_until))
        self.counted_until = now
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
    """The record's file. Exit 2 for a job's id that is none: it may be a head's answer, and must lead nowhere else."""
    try:
        check_job_id(job)
    except ValueError as error:
        raise Exit(str(error), code=2) from None
    return directory(stack) / MANAGED / f"{job}.json"


def load(stack: str, job: str) -> Record | None:
    """The record of a job that was managed from here before; None: there is none. Exit 2 for one that is damaged."""
    path = path_of(stack, job)
    try:
        record = _parsed(json.loads(path.read_text(encoding="utf-8")))
        if (record.stack, record.job) != (stack, job):
            raise ValueError(f"it is that of {record.job} on {record.stack}")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Exit(f"{path}: {error.strerror}", code=2) from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise Exit(f"{path}: not a managed job's record ({error}): remove it to manage {job} anew", code=2) from None
    return record


def _parsed(table: Mapping[str, Any]) -> Record:
    """The record of a file's JSON, each field of its type. ValueError, KeyError or another for one that is not."""
    prices = [(_number(since), _number(usd)) for since, usd in table["prices"]]
    if not prices:
        raise ValueError("it has no price")
    return Record(
        job=_text(table["job"]),
        stack=_text(table["stack"]),
        nodes=_count(table["nodes"]),
        began=_number(table["began"]),
        bounds=_bounds(table["bounds"]),
        zones=_places(table.get("zones", [])),
        types=_places(table.get("types", [])),
        prices=prices,
        earlier=_count(table.get("earlier", 0)),
        first_attempt=_count(table.get("first_attempt", 1)),
        replaced=_count(table.get("replaced", 0)),
        resized=_count(table.get("resized", 0)),
        decisions=_decisions(table.get("decisions", [])),
        sent=_count(table.get("sent", 0)),
        manager=_text(table.get("manager", "")),
        resume=_flag(table.get("resume", False)),
        counted_until=_number(table.get("counted_until", 0.0)),
        text=_text(table.get("text", "")),
    )


def _bounds(table: Mapping[str, Any]) -> Bounds:
    usd = table["max_usd"]
    hours = table["max_hours"]
    return Bounds(
        max_usd=math.inf if usd is None else _number(usd),
        max_hours=math.inf if hours is None else _number(hours),
        tries=_count(table["tries"]),
    )


def _decisions(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise ValueError(f"decisions = {value!r}")
    return [{"time": _number(one["time"]), "text": _text(one["text"]), "usd": _number(one["usd"])} for one in value]


def _places(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) and _PLACE.fullmatch(one) for one in value):
        raise ValueError(f"{value!r} is no list of zones or types")
    return value


def _number(value: object) -> float:
    """A number that JSON has, though Python reads others, too: finite, and not below zero."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no number from 0 on")
    return float(value)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no whole number from 0 on")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


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
