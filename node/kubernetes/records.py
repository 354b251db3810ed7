"""Changes of a job's record that Kubernetes makes necessary. Runs on the head pod, asked by the operator's side.

    kube-over RUN_DIR undo                 the API has refused the job: forget a new one, restore a resumed one's record
    kube-over RUN_DIR STATE REASON CODE BY the job has ended, by whom, and no supervisor has recorded it

Prints the job's record as it then is; {} if the job is forgotten.
"""

from __future__ import annotations

import fcntl
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node import folders
from node.job import files
from node.job.endings import Ending
from node.job.files import Record
from node.job.log import Log
from node.kubernetes.identity import Address

_BEFORE = "state-before.json"
"""In the directory of a job that is being resumed: its record until then."""


def keep(run_dir: Path, before: Record) -> None:
    """Keep a job's record as it was before it was resumed, for `undo`; nothing of a new job. Its pods must not look for
    the supervisor that it had before."""
    Address.forget(run_dir)
    if before:
        files.write(run_dir / _BEFORE, before)
    else:
        (run_dir / _BEFORE).unlink(missing_ok=True)


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold the lock under which pods and the operator may decide how a job has ended."""
    with (run_dir / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def undo(run_dir: Path) -> Record:
    """Leave nothing of a new job, and a resumed one as it was; returns its record. One that runs is left alone."""
    record = files.read(run_dir / "state.json")
    if record.get("state") != "PENDING":
        return record
    before = files.read(run_dir / _BEFORE)
    if not before:
        folders.remove(run_dir)
        return {}
    files.write(run_dir / "state.json", before)
    (run_dir / _BEFORE).unlink()
    return before


def end(run_dir: Path, ending: Ending, code: int, node: str) -> Record:
    """Record the end of a job that nobody has recorded, and say it in the job's log as `node`; returns its record, as
    it is if the job was over already."""
    with locked(run_dir):
        record = files.read(run_dir / "state.json")
        if record["state"] in files.OVER:
            return record
        state, reason, by = ending
        log = Log(run_dir / "log", node)
        if state == "FAILED":
            log.say(f"error: {reason}")
        log.say(f"{record['id']} {state}: {reason}")
        log.flush(5.0)
        ended = {**record, "state": state, "reason": reason, "exit_code": code, "ended": time.time(), "ended_by": by}
        files.write(run_dir / "state.json", ended)
    return ended


def main(argv: list[str]) -> int:
    """`kube-over RUN_DIR undo` or `kube-over RUN_DIR STATE REASON CODE BY`; 2 for anything else."""
    run_dir = files.absolute(argv[0])
    if argv[1:] == ["undo"]:
        print(json.dumps(undo(run_dir)), flush=True)
        return 0
    if len(argv) != 5 or argv[1] not in files.OVER or not argv[3].isdecimal():
        what = f"undo, or one of {', '.join(files.OVER)} with a reason, an exit code and who has ended it"
        print(f"kube-over: {' '.join(argv[1:])}: must be {what}", file=sys.stderr)
        return 2
    print(json.dumps(end(run_dir, Ending(argv[1], argv[2], argv[4]), int(argv[3]), "head")), flush=True)
    return 0
