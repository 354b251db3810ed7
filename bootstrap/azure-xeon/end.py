"""Ends a node of Azure, for bootstrap/limits.py."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LONGEST_WAIT = 600  # seconds between two tries to be deallocated


def end(record: dict[str, Any], say: Callable[[str], None], settings: dict[str, str]) -> None:
    """Ask Azure to deallocate this node, again and again. Never power it off: Azure bills a machine that is only
    powered off, and no program would then ask again. After a failure wait longer: 30 s, 60 s, ... 10 minutes.
    """
    if 0 < record.get("next_try", 0) - record["time"] <= LONGEST_WAIT:
        return
    say(f"this node ends: {record['ends']}")
    program = [sys.executable, "-IS", str(Path(__file__).parent / "deallocate.py")]
    try:
        env = {**os.environ, **settings}
        done = subprocess.run(program, env=env, capture_output=True, text=True, check=False, timeout=120)
        record["failed"] = "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        record["failed"] = str(error)
    if not record["failed"]:
        record.pop("tries", None)
        record.pop("next_try", None)
        return  # Azure switches the node off in a moment; otherwise the next run asks again
    record["tries"] = record.get("tries", 0) + 1
    wait = min(30 * 2 ** min(record["tries"] - 1, 10), LONGEST_WAIT)
    record["next_try"] = record["time"] + wait
    record["failed"] += f"; try {record['tries']}, the next in {wait} s"
    say(f"this node is STILL PAID FOR: {record['failed']}; you can end it yourself: az vm deallocate")
