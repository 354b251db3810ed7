"""A job's record beside what Slurm knows: which state is the true one, and the end of a job that nobody recorded.

The supervisor, which is the batch script, records a job's end. It cannot if it is killed with its node or by hand; then
the first program on the head that looks at the job does. slurmdbd is not needed: the record is what is kept.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fabfile.launchers import sbatch
from node.job import endings, files
from node.job.diagnosis import signal_name
from node.job.endings import Ending
from node.job.files import Record
from node.job.log import Log
from node.slurm import queue
from node.slurm.queue import Fate, QueuedJob, SlurmError

_TO_SUBMIT = 30.0
"""Seconds after a job's record is made by which Slurm has it."""

_ROOM = 64 << 10
"""Bytes with fewer of which free a disk counts as full: nobody can write a record there, or only just."""


def is_ours(record: Record) -> bool:
    """Whether this is the record of a job that Slurm runs."""
    return "slurm" in record


def now(run_dir: Path, record: Record, queued: Sequence[QueuedJob] | None = None) -> Record:
    """The job's state, by its record and by Slurm's queue. If Slurm does not answer, as while slurmctld restarts, it is
    what was recorded last. `queued`: the queue, if it is known already."""
    if record["state"] in files.OVER:
        return record
    try:
        queued = queue.jobs() if queued is None else queued
        row = _row(record, queued)
        if row is not None and row.state == "PENDING":
            if row.reason == "BeginTime" and record["started"]:
                _release(row.id)
            return {**record, "state": "PENDING", "reason": f"Slurm: {row.reason}", "queued": True}
        if row is not None:
            return record
        again = files.read(run_dir / "state.json")
        if again.get("slurm") != record["slurm"] or again.get("state") in files.OVER:
            return again  # it has ended, or gone on in another job of Slurm's, between the two looks
        if not record["slurm"] and time.time() - record["created"] < _TO_SUBMIT:
            return record
        return settle(run_dir)
    except SlurmError:
        return record


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold the lock under which programs on several nodes may decide how a job goes on, or that it has ended."""
    with (run_dir / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _release(number: str) -> None:
    """Let Slurm start a job at once that it has requeued, and holds back until the job's old credential has expired. It
    is that of a node that died: there is nothing to wait for."""
    with suppress(SlurmError):  # it has just started
        queue.ask(["scontrol", "update", f"jobid={number}", "starttime=now"])


def settle(run_dir: Path) -> Record:
    """Record the end of a job that Slurm does not run any more; returns its record, also if there is no room to write
    it. SlurmError."""
    with locked(run_dir):
        record = files.read(run_dir / "state.json")
        if record["state"] in files.OVER:
            return record
        fate = queue.fate(record["slurm"], record["id"]) if record["slurm"] else None
        if fate is not None and not fate.is_over:
            return record  # it was submitted after the queue was read
        never = Ending("FAILED", "it was never submitted to Slurm")
        state, reason, by = why(fate) if record["slurm"] else never
        full = shutil.disk_usage(run_dir).free < _ROOM
        if full:  # which may well be why, and why nobody has recorded it
            reason += f"; the disk with {run_dir} is full"
        log = Log(run_dir / "log", fate.host if fate and fate.host else os.uname().nodename)
        log.say(f"error: {reason}")
        log.say(f"{record['id']} {state}: {reason}")
        ended = {**record, "state": state, "reason": reason, "exit_code": 1, "ended": time.time(), "ended_by": by}
        try:
            files.write(run_dir / "state.json", ended)
        except OSError:
            if not full:
                raise
    return ended


def why(fate: Fate | None) -> Ending:
    """How a job ended whose supervisor did not record it."""
    if fate is None:
        return Ending("FAILED", "Slurm does not know it any more, and its supervisor has not recorded how it ended")
    where = f" on {fate.host}" if fate.host else ""
    match fate.state:
        case "CANCELLED":
            return Ending("CANCELLED", "cancelled in Slurm (scancel)", endings.SOMEBODY)
        case "TIMEOUT":
            return Ending("FAILED", "Slurm's time limit ended it", endings.SOMEBODY)
        case "NODE_FAIL":
            return Ending("FAILED", f"its first node, {fate.host}, failed" if fate.host else "one of its nodes failed")
    if fate.signal:
        return Ending("FAILED", f"its supervisor{where} was killed by {signal_name(fate.signal)}")
    how = f"ended with exit code {fate.code} (Slurm: {fate.state}): {sbatch.OUTPUT}"
    return Ending("FAILED", f"its supervisor{where} {how}")


def others(queued: Sequence[QueuedJob], records: Sequence[Record]) -> list[QueuedJob]:
    """The jobs of the queue that are none of these: somebody submitted them by hand, or from another cluster's `runs`.
    A colleague may give a job our comment; it is ours only with our user."""
    user = pwd.getpwuid(os.getuid()).pw_name
    known = {record["id"] for record in records}
    return [job for job in queued if job.ours not in known or job.user != user]


def _row(record: Record, queued: Sequence[QueuedJob]) -> QueuedJob | None:
    found = (job for job in queued if job.id == record["slurm"] and job.ours == record["id"])
    return next(found, None)
