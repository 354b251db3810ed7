"""The jobs of a cluster, as recorded on its head: their numbers, their states, and which hold or wait for nodes."""

from __future__ import annotations

import fcntl
import itertools
import json
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from node.job import endings, files
from node.job.files import Record
from node.slurm import queue, records
from node.slurm.queue import QueuedJob, SlurmError

_SYSTEMD_SECONDS = 15.0
"""How long to go on asking a systemd that does not answer."""
_TO_START = 30.0
"""Seconds after a job's record is made during which a missing service does not mean that the job has failed. A sudo and
a systemd-run come in between and take seconds on a busy head, and the verb that follows a job ends if it reads FAILED.
Waiting longer costs little: when a launcher dies, aftermath.py records that at once."""
_NUMBER = re.compile(r"-([0-9]{1,9})$", re.ASCII)
"""Of at most nine digits: a folder that somebody made must not give the next job a number of a thousand."""
_NEEDED = {"id", "state", "created", "nodes"}
"""Keys without which a job's record counts as damaged."""


@contextmanager
def locked(runs: Path) -> Iterator[None]:
    """Hold the lock under which numbers and nodes are given out; waits for it."""
    runs.mkdir(parents=True, exist_ok=True)
    with (runs / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def take(runs: Path, name: str, taken: Iterable[str] = ()) -> str:
    """Make the directory of a new job and return its id, `NAME-NUMBER`. `taken`: ids that other clusters have put into
    the bucket. Only one caller gets an id even if clusters share `runs`: the second mkdir of a name fails."""
    names = [*(path.name for path in runs.iterdir() if path.is_dir()), *taken]
    for number in itertools.count(max(map(number_of, names), default=0) + 1):
        with suppress(FileExistsError):
            (runs / f"{name}-{number}").mkdir()
            break
    return f"{name}-{number}"


def number_of(job: str) -> int:
    """The number at the end of a job's id; 0 if there is none."""
    number = _NUMBER.search(job)
    return int(number[1]) if number else 0


def every(runs: Path) -> list[Record]:
    """The states of all jobs, in the order of their numbers."""
    there = [path for path in runs.iterdir() if (path / "state.json").exists()] if runs.is_dir() else []
    queued = _queue_for(there)
    return sorted((state_of(path, queued) for path in there), key=lambda state: number_of(state["id"]))


def _queue_for(run_dirs: Iterable[Path]) -> list[QueuedJob] | None:
    """Slurm's queue, asked once for all jobs; None if none of them is Slurm's and under way, or if it is not known."""
    states = [files.read(path / "state.json") for path in run_dirs]
    if any(records.is_ours(state) and state.get("state") not in files.OVER for state in states):
        with suppress(SlurmError):  # each job's own look then says that it is not known
            return queue.jobs()
    return None


def state_of(run_dir: Path, queued: Sequence[QueuedJob] | None = None) -> Record:
    """A job's state; empty if there is no such job. FAILED also if its record cannot be read, or says that the job is
    not over while its supervisor is gone. `queued`: Slurm's queue, if it is known."""
    state = files.read(run_dir / "state.json")
    if not state.keys() >= _NEEDED and (run_dir / "state.json").exists():
        return damaged(run_dir)
    if state and state["id"] != run_dir.name:  # the job's user can write anything there: the folder's name counts
        return damaged(run_dir)
    if state and records.is_ours(state):
        return records.now(run_dir, state, queued)
    if state.get("kubernetes"):  # whether its pods still run is the API's to say, which the operator asks
        return state
    if not state or time.time() - state["created"] < _TO_START:
        return state
    if state["state"] not in files.OVER and not is_active(state["id"]):
        state = files.read(run_dir / "state.json")  # the job may have ended between reading and is_active
        if state["state"] not in files.OVER:
            return {**state, "state": "FAILED", "reason": "its launcher on the head is gone", "exit_code": 1}
    return state


def damaged(run_dir: Path) -> Record:
    """A FAILED state for a job whose record is empty or cut, so that its files can be fetched and it can be resumed."""
    when = (run_dir / "state.json").stat().st_mtime
    why = {"state": "FAILED", "reason": "its record state.json is damaged", "exit_code": 1}
    times = {"created": when, "started": None, "ended": when}
    return {"id": run_dir.name, **why, **times, "nodes": [], "attempt": 0, "price_per_hour": 0.0}


def in_the_way(runs: Path, nodes: set[str], job: str = "") -> list[Record]:
    """The states of the jobs that hold some of these nodes, or wait for them ahead of `job`."""
    return [
        state
        for state in every(runs)
        if state["state"] not in files.OVER and state["id"] != job and nodes & wants(state)
        if not (state.get("queued") and job and number_of(state["id"]) > number_of(job))
    ]


def wants(state: Record) -> set[str]:
    """The nodes that a job holds, or, while it waits, those of which it is to get some."""
    return set(state.get("among") or state["nodes"])


def set_state(run_dir: Path, **changes: object) -> Record:
    """Change a job's record; returns the new record."""
    state = {**files.read(run_dir / "state.json"), **changes}
    files.write(run_dir / "state.json", state)
    return state


def over(run_dir: Path, state: str, reason: str, code: int, by: str = endings.MACHINES) -> Record:
    """Record a job's end; `by`: who has ended it, as node/job/endings.py has it."""
    return set_state(run_dir, state=state, reason=reason, exit_code=code, ended=time.time(), ended_by=by)


def is_active(job: str) -> bool:
    """Whether a job's service is running. Asks again for a while if systemd does not answer, as it does not while an
    update restarts it; then raises CalledProcessError."""
    unit = f"{files.unit_of(job)}.service"
    argv = ["systemctl", "show", "--property=ActiveState", "--value", unit]
    deadline = time.monotonic() + _SYSTEMD_SECONDS
    while True:
        shown = subprocess.run(argv, capture_output=True, text=True, check=False)
        if shown.returncode == 0:
            return shown.stdout.strip() in ("active", "activating", "deactivating", "reloading")
        if time.monotonic() > deadline:
            shown.check_returncode()
        time.sleep(0.5)


def show(argv: list[str]) -> int:
    """`job RUNS ID`: print what resuming the job needs, as JSON: its job.toml as text, its program, if it ran one of
    the user's, how many nodes it was to have, which it had, the one that has its files, if that is not the head, and
    whether it is elastic."""
    run_dir = files.absolute(argv[0]) / argv[1]
    spec = files.read(run_dir / "spec.json")
    nodes = spec.get("count") or len(spec.get("cluster", {}).get("nodes", []))
    asked = {"job": files.text(run_dir / "job.toml"), "program": spec.get("program"), "nodes": nodes}
    state = files.read(run_dir / "state.json")
    asked |= {"files_on": state.get("files_on", ""), "on": state.get("ran_on", [])}
    asked["elastic"] = spec.get("elastic", False)
    print(json.dumps(asked), flush=True)
    return 0


def main(argv: list[str]) -> int:
    """`jobs RUNS`: print the states of all jobs as JSON."""
    print(json.dumps(every(files.absolute(argv[0]))), flush=True)
    return 0
