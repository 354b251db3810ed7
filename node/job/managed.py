"""A managed job, on its head: who manages it, what that manager has decided, and on which nodes it wants the job.

In the job's directory
    manager.json     the manager's lease: {"who", "until"}
    managed.jsonl    its decisions, one a line: {"time", "text", "usd"}; managed-logged.json: how far the log has them
    resize.json      {"without": [node, ...]}: stop with a checkpoint and go on, on all of the job's nodes but these

The job needs none of them: without a manager it goes on as it is.
"""

from __future__ import annotations

import fcntl
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from node.job import files
from node.job.files import Record

_LEASE, _DECISIONS, _LOGGED, _RESIZE = "manager.json", "managed.jsonl", "managed-logged.json", "resize.json"


def main(argv: list[str]) -> int:
    """`manage RUN_DIR`, with an order as JSON on stdin: take or renew the lease, and do what it asks. Prints
    {"holder": who else has the lease, "until": ...} with nothing done, or what `_obeyed` returns."""
    run_dir = files.absolute(argv[0])
    order: Record = json.loads(sys.stdin.readline())
    if not (run_dir / "spec.json").exists():
        print(json.dumps({"unknown": run_dir.name}), flush=True)
        return 0
    with _locked(run_dir):
        held, now = files.read(run_dir / _LEASE), time.time()
        if held and held["who"] not in (order["who"], *order["instead_of"]) and held["until"] > now:
            print(json.dumps({"holder": held["who"], "until": held["until"]}), flush=True)
            return 0
        print(json.dumps(_obeyed(run_dir, order, now)), flush=True)
    return 0


def _obeyed(run_dir: Path, order: Record, now: float) -> Record:
    """Do what an order asks; returns the job's code folder, whether a change of its nodes is pending, and the
    decisions until now."""
    if order["seconds"]:
        files.write(run_dir / _LEASE, {"who": order["who"], "until": now + order["seconds"]})
    else:
        (run_dir / _LEASE).unlink(missing_ok=True)
    known = decisions(run_dir)
    added = [one for one in order["decisions"] if one not in known]
    if added:
        with (run_dir / _DECISIONS).open("a") as file:
            file.writelines(json.dumps(one) + "\n" for one in added)
    if order["without"] is not None:
        files.write(run_dir / _RESIZE, {"without": order["without"]})
    code = files.read(run_dir / "spec.json").get("code", "")
    return {"code": code, "resizing": wanted(run_dir) is not None, "decisions": [*known, *added]}


@contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    with (run_dir / ".manager-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def decisions(run_dir: Path) -> list[dict[str, Any]]:
    """The decisions of the job's managers, the oldest first; a line that was cut is left out."""
    return [one for line in files.text(run_dir / _DECISIONS).splitlines() if (one := files.parsed(line))]


def is_held(run_dir: Path) -> bool:
    """Whether somebody manages the job now."""
    return float(files.read(run_dir / _LEASE).get("until", 0.0)) > time.time()


def wanted(run_dir: Path) -> frozenset[str] | None:
    """The nodes without which the job is to go on; None: nobody has asked for a change."""
    record = files.read(run_dir / _RESIZE)
    return frozenset(record.get("without", ())) if record else None


def done(run_dir: Path) -> None:
    """The job goes on as was asked, or cannot."""
    (run_dir / _RESIZE).unlink(missing_ok=True)


class Relay:
    """Copies each decision into the job's log, once: also those made while no supervisor ran."""

    def __init__(self, run_dir: Path, say: Callable[[str], None]) -> None:
        self._path, self._mark, self._say = run_dir / _DECISIONS, run_dir / _LOGGED, say
        self._read = int(files.read(self._mark).get("bytes", 0))

    def look(self) -> None:
        """Log what came since the last look. A line that is being written waits for the next one."""
        try:
            if self._path.stat().st_size <= self._read:
                return
            with self._path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except OSError:  # there is none, or a shared disk does not answer for a moment
            return
        new = new[: new.rfind(b"\n") + 1]
        self._read += len(new)
        with suppress(OSError):  # on a full disk they may be logged twice
            files.write(self._mark, {"bytes": self._read})
        for line in new.decode(errors="replace").splitlines():
            if text := files.parsed(line).get("text"):
                self._say(f"managed: {text}")
