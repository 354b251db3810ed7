"""Asks Slurm: its queue, its nodes, how a job of its ended. Runs on any node of the cluster.

The formats are fixed ones of squeue, sinfo and scontrol that are the same from Slurm 20 on; `--json` is not, and needs
a plugin that not every installation has.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fabfile.launchers import sbatch

SECONDS = 20.0
"""How long Slurm may take to answer."""
_LOOK_SECONDS = 5.0
"""The same for the queue: an operator who follows a job takes the connection for lost after 10 s without a word."""
_SLURMD_PORT = 6818
_SQUEUE = "%i|%T|%u|%D|%N|%V|%S|%r|%k|%j"
_FIELDS = _SQUEUE.count("|") + 1
_PREFIX = re.compile(r"^(\w+: )?(error: )?(slurm_\w+ error: )?")
_FREE = re.compile(r"(idle|completing)[~%]?")
"""States of a node that can take a job: with ~ it is powered down and Slurm boots it, with % it is being so."""


_ENDED = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
)


class SlurmError(Exception):
    """Slurm refuses or does not answer: one line, its own."""


@dataclass(frozen=True)
class QueuedJob:
    """A job that Slurm has queued or runs."""

    id: str
    """Slurm's number; in an array `12_3`."""
    state: str
    """Slurm's word: PENDING, RUNNING, COMPLETING ..."""
    user: str
    count: int
    """How many nodes it has, or asks for."""
    nodes: str
    """Slurm's list of its nodes, such as node[1-2]; empty: it waits."""
    submitted: float
    """Seconds of Unix time."""
    started: float | None
    reason: str
    """Why it waits, in Slurm's word; `None` if it does not."""
    comment: str
    name: str

    @property
    def ours(self) -> str:
        """Its id as one of our jobs; empty: somebody submitted it by hand."""
        return sbatch.id_of(self.comment) if sbatch.id_of(self.comment) == self.name else ""

    def to_record(self) -> dict[str, Any]:
        """Every field by its name, as JSON can have it: what `fab jobs` gets of a job that is not ours."""
        return asdict(self)


def ask(argv: list[str], *, environment: Mapping[str, str] | None = None, seconds: float = SECONDS) -> str:
    """What a command of Slurm's prints. SlurmError with its last line, if it fails, is late or is not there."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{argv[0]} does not answer in {seconds:.0f} s") from None
    except OSError as error:
        raise SlurmError(f"{argv[0]}: {error.strerror}") from None
    if done.returncode != 0:
        lines = (done.stderr.strip() or f"{argv[0]} ended with exit code {done.returncode}").splitlines()
        raise SlurmError(_PREFIX.sub("", lines[-1]))
    return done.stdout


def jobs() -> list[QueuedJob]:
    """The jobs that wait or run, everybody's, by Slurm's number. SlurmError."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    argv = ["squeue", "--noheader", "--all", f"--format={_SQUEUE}"]
    return parsed(ask(argv, environment=environment, seconds=_LOOK_SECONDS))


def parsed(text: str) -> list[QueuedJob]:
    """The jobs in squeue's output, in the order of their numbers. Lines of another form are left out: a name or a
    comment with a line end in it must not make the other jobs unreadable."""
    found = []
    for line in text.split("\n"):
        fields = line.split("|", _FIELDS - 1)
        if len(fields) != _FIELDS or not re.match(r"[0-9]+(_|$)", fields[0]) or not fields[3].isdecimal():
            continue
        id_, state, user, count, nodes, submitted, started, reason, comment, name = fields
        times = [float(text) if re.fullmatch(r"[0-9]{1,12}", text) else None for text in (submitted, started)]
        began = times[1] if state != "PENDING" else None  # for one that waits it is a guess
        found.append(QueuedJob(id_, state, user, int(count), nodes, times[0] or 0.0, began, reason, comment, name))
    return sorted(found, key=lambda job: [int(part) for part in re.findall(r"[0-9]+", job.id)])


def nodes(partition: str = "") -> dict[str, str]:
    """The state of every node of the default partition, in sinfo's word: `idle`, `allocated`, `down*`. SlurmError."""
    which = [f"--partition={partition}"] if partition else []
    lines = ask(["sinfo", "--noheader", "--Node", *which, "--format=%N|%T|%P"]).splitlines()
    rows = [line.split("|") for line in lines if line.count("|") == 2]
    default = [row for row in rows if row[2].endswith("*")] or rows
    return {name: state for name, state, _ in (rows if partition else default)}


def longest(partition: str = "") -> tuple[str, float]:
    """(the default partition's name, how many seconds a job may run there; `inf`: as long as it wants). SlurmError."""
    which = [f"--partition={partition}"] if partition else []
    lines = ask(["sinfo", "--noheader", *which, "--format=%P|%l"]).splitlines()
    rows = [line.split("|") for line in lines if line.count("|") == 1]
    name, limit = next((row for row in rows if row[0].endswith("*")), rows[0] if rows else (partition, ""))
    return name.removesuffix("*"), _seconds(limit)


def given(partition: str = "") -> tuple[str, float]:
    """As `longest`, of a job that asks for no time: what the partition gives it then, if that is less. SlurmError."""
    which = [f"--partition={partition}"] if partition else []
    rows = [line.split("|") for line in ask(["sinfo", "--noheader", *which, "--format=%P|%L|%l"]).splitlines()]
    known = [row for row in rows if len(row) == 3]
    name, default, most = next(
        (row for row in known if row[0].endswith("*")), known[0] if known else [partition, "", ""]
    )
    return name.removesuffix("*"), min(_seconds(default), _seconds(most))


def _seconds(limit: str) -> float:
    """`1-02:00:00`, `1:30:00`, `4:00` in seconds; `inf` for infinite, and for what Slurm itself is to judge."""
    match = re.fullmatch(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)", limit)
    if not match:
        return math.inf
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def slurmd_port() -> int:
    """The TCP port of slurmd on every node; its default, if slurmctld does not answer."""
    try:
        found = re.search(r"^SlurmdPort\s*=\s*([0-9]+)", ask(["scontrol", "show", "config"]), re.MULTILINE)
    except SlurmError:
        found = None
    return int(found[1]) if found else _SLURMD_PORT


def is_free(state: str) -> bool:
    """Whether a node in this state can take a job now."""
    return _FREE.fullmatch(state.lower()) is not None


@dataclass(frozen=True)
class Fate:
    """How a job of Slurm's ended, or is ending."""

    state: str
    """Slurm's word: COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL, PREEMPTED, PENDING (requeued), RUNNING ..."""
    host: str
    """The node on which its batch script ran; empty: on none."""
    code: int
    signal: int
    """The signal that killed its batch script; 0: none."""
    requeued: int
    """How often Slurm has requeued it."""
    reason: str
    """Slurm's word: None, TimeLimit ..."""

    @property
    def is_over(self) -> bool:
        """Whether Slurm has let go of it."""
        return self.state in _ENDED


def fate(number: str, job: str) -> Fate | None:
    """How Slurm's job `number` ended; None if Slurm does not know it any more, or if it is not `job` of ours."""
    try:
        text = ask(["scontrol", "--oneliner", "show", "job", number])
    except SlurmError as error:
        if "Invalid job id" in str(error):
            return None
        raise
    return parsed_fate(text, job)


def parsed_fate(text: str, job: str) -> Fate | None:
    """The fate in what `scontrol show job` prints; None if it is another job than ours."""
    found = {key: value for key, _, value in (word.partition("=") for word in reversed(text.split()))}
    if found.get("Comment") != sbatch.comment(job) or found.get("JobName") != job:
        return None
    code, _, signal = found.get("ExitCode", "0:0").partition(":")
    host = found.get("BatchHost", "")
    return Fate(
        state=found.get("JobState", "UNKNOWN"),
        host="" if host == "(null)" else host,
        code=_number(code),
        signal=_number(signal),
        requeued=_number(found.get("Restarts", "")),
        reason=found.get("Reason", ""),
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
