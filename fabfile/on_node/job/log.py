"""The job's log on the head: every line of every rank, `time node rank text`, and how it is read back by offset."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fabfile.on_node.job import jobs, paths

HEAD = "-"
"""The rank of a line that no rank has said."""
POLL = 0.3
LOOK = 5.0
"""Seconds between two questions to systemd, whether the job's launcher is there: its cores are for the training."""
BATCH = 500


class Log:
    """Written from several threads; a line is whole. On a full disk lines are kept and written later."""

    def __init__(self, path: Path, node: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._node = node
        self._lock = threading.Lock()
        self._kept: list[bytes] = []

    def say(self, text: str) -> None:
        """A line of the launcher's own."""
        self.add(time.time(), self._node, HEAD, text)

    def add(self, when: float, node: str, rank: str, text: str) -> None:
        with self._lock:
            self._kept.append(f"{when:.3f} {node} {rank} {text}\n".encode())
            try:
                while self._kept:
                    written = os.write(self._file, self._kept[0])
                    rest = self._kept[0][written:]
                    self._kept[:1] = [rest] if rest else []
            except OSError:
                return  # the next line tries again

    def flush(self, seconds: float) -> None:
        """At the end there is no next line."""
        deadline = time.monotonic() + seconds
        while self._kept and time.monotonic() < deadline:
            self.say("lines were late, as the disk was full")
            time.sleep(0.2)


def main(argv: list[str]) -> int:
    """`logs ID`: a line of JSON for each batch of lines, and the job's state after the last of a job that is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--rank", default="")
    parser.add_argument("--since", type=float, default=0.0, help="seconds before now")
    parser.add_argument("--tail", type=int, default=-1, help="only so many lines of what is there already")
    parser.add_argument("--follow", action="store_true")
    args = parser.parse_args(argv[1:])
    run_dir = paths.absolute(str(args.run_dir))
    wanted = Wanted(args.rank, time.time() - args.since if args.since else 0.0)
    offset, tail, looked = args.offset, args.tail, 0.0
    while True:
        state = paths.read(run_dir / "state.json")
        if time.monotonic() - looked > LOOK:
            looked, state = time.monotonic(), jobs.state_of(run_dir)
        lines, offset = read(run_dir / "log", offset, wanted)
        if tail >= 0:
            lines, tail = lines[len(lines) - tail :] if tail < len(lines) else lines, -1
        for first in range(0, len(lines), BATCH):
            tell({"lines": lines[first : first + BATCH], "offset": offset if first + BATCH >= len(lines) else None})
        if state["state"] in paths.OVER or not args.follow:
            tell({"state": state, "offset": offset})
            return 0
        if not lines:
            tell({"offset": offset})  # and nobody to hear it ends this program
        time.sleep(POLL)


class Wanted:
    """Which lines somebody wants to see."""

    def __init__(self, rank: str, since: float) -> None:
        self._rank, self._since = rank, since

    def __call__(self, line: list[str]) -> bool:
        return (not self._rank or line[2] == self._rank) and float(line[0]) >= self._since


def read(path: Path, offset: int, wanted: Wanted) -> tuple[list[list[str]], int]:
    """The whole lines from an offset on that somebody wants, and the offset after them."""
    lines: list[list[str]] = []
    if not path.exists():
        return lines, offset
    with path.open("rb") as file:
        file.seek(offset)
        for raw in file:
            if not raw.endswith(b"\n"):
                break  # it is still being written
            offset += len(raw)
            line = raw.decode(errors="replace").rstrip("\n").split(" ", 3)
            if len(line) == 4 and wanted(line):
                lines.append(line)
    return lines, offset


def tell(event: dict[str, Any]) -> None:
    try:
        print(json.dumps(event), flush=True)
    except BrokenPipeError:
        sys.exit(0)
