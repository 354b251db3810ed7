"""For programs that `fab launch` runs: tell the job's watchdog how far this process is.

    import trainyard
    trainyard.beat(step)

After the first beat the process counts as hung when it is silent for two minutes. Outside of a job this does nothing.
This file has no dependency, so it may be copied beside a program that must also run elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

_path = os.environ.get("TRAINYARD_HEARTBEAT", "")
_wrapper = int(os.environ.get("TRAINYARD_WRAPPER", "0"))


def beat(step: int, phase: str = "train") -> None:
    """Say that this process lives and is at this step. Cheap enough for every step; no error of the file system's
    disturbs the program."""
    if not _path:
        return
    record = {"step": int(step), "phase": str(phase), "time": time.time(), "pid": os.getpid(), "wrapper": _wrapper}
    temporary = Path(f"{_path}.{os.getpid()}")
    with contextlib.suppress(OSError):  # a full disk, say
        temporary.write_text(json.dumps(record), encoding="utf-8")
        temporary.replace(_path)
