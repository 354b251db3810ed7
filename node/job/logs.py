"""Prints a job's log for the operator, and goes on until the job is over. Runs on the head."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from node.job import files, job_table, log

POLL = 0.3
LOOK = 5.0
"""Seconds between two checks with systemd or Slurm that the job's supervisor runs; rare, as the head's cores are for
training."""


def main(argv: list[str]) -> int:
    """`logs RUN_DIR`: print a line of JSON for each batch of lines. After the last, unless --follow waits for more of a
    running job, print the job's state."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--offset", type=int, default=0, help="bytes of the log to leave out; -1: all that is there")
    parser.add_argument("--rank", default="")
    parser.add_argument("--since", type=float, default=0.0, help="seconds before now")
    parser.add_argument("--tail", type=int, default=-1, help="only so many lines of what is there already")
    parser.add_argument("--follow", action="store_true")
    args = parser.parse_args(argv)
    run_dir = files.absolute(str(args.run_dir))
    path = run_dir / "log"
    wanted = log.Wanted(args.rank, time.time() - args.since if args.since else 0.0)
    offset, looked = log.end(path) if args.offset < 0 else args.offset, 0.0
    if args.tail >= 0:
        offset = log.tail(path, args.tail, wanted, offset)
    while True:
        state = files.read(run_dir / "state.json")
        if time.monotonic() - looked > LOOK:
            looked, state = time.monotonic(), job_table.state_of(run_dir)
        over = not args.follow or state.get("state") in files.OVER
        lines, offset = log.read(path, offset, wanted)
        if lines:
            send({"lines": lines, "offset": offset})
            continue
        if over and offset >= log.end(path, complete_lines=True):
            send({"state": state, "offset": offset})
            return 0
        send({"offset": offset})  # ends this program if its reader is gone
        time.sleep(POLL)


def send(event: dict[str, Any]) -> None:
    """Print a line of JSON; end the program if stdout is closed."""
    try:
        print(json.dumps(event), flush=True)
    except BrokenPipeError:
        sys.exit(0)
