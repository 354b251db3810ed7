"""Where a job's files are, and its records: written whole or not at all.

runs/ID/ on every node
    job.toml             the resolved job
    checkpoints/, heartbeat/, metrics.jsonl ...: the trainer's
    nodes/NODE/          rank-N.log and rank-N.json of the ranks of that node
runs/ID/ on the head, too
    spec.json            what was asked for: see JobSpec in spec.py
    state.json           how it is: see STATES
    usage.jsonl          what its ranks used of their nodes: see usage.py
    log, log.START       every line of every rank: time, node, rank, text; rotated, see log.py
    stop.json            there: somebody wants it stopped
/run/trainyard-secrets-UID/ID.json on the head alone: for rank 0's environment, the key of Weights & Biases; in memory,
                         never in runs/, which the nodes may share; there until the job is over, as a restart needs it
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from pathlib import Path
from typing import Any

STATES = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED")
OVER = STATES[2:]
LEASE = 6.0
"""Seconds without a word from the head after which a node ends its part, and the other way round."""
JOB = Path("/var/lib/trainyard/job.json")
"""On a node: which job it is busy with. `fab status` shows it."""
LIMITS = Path("/run/trainyard/limits.json")
"""On a node that has limits: when it ends, see bootstrap/limits.py."""
NOTICE = Path("/run/trainyard/notice.json")
"""On a node that its cloud is about to take: when, and why, see bootstrap/notice.py."""
SECRETS = Path(f"/run/trainyard-secrets-{os.getuid()}")
"""Not /run/user/UID or /dev/shm: systemd empties both when the user logs out, while the job goes on."""
TIME = re.compile(r"\d{1,10}\.\d{3}")
"""The time of a line in a log, seconds of Unix time: anything else was cut by a full disk or a crash."""
_FULL_DISK_SECONDS = 5.0

Record = dict[str, Any]


def absolute(run_dir: str) -> Path:
    """A job's directory; a relative one is in the home."""
    return Path.home() / run_dir


def unit_of(job: str) -> str:
    """The name of the job's units: .service on the head, .scope on every node, and -keeper.service beside that."""
    return f"trainyard-job-{job}"


def secrets_of(job: str) -> Path:
    """The file with a job's secrets."""
    return SECRETS / f"{job}.json"


def read(path: Path) -> Record:
    """A record; empty when there is none, or when what is there is no record: a machine that lost its power can leave
    an empty file, and one such file must not stop every verb for every job."""
    try:
        record = json.loads(path.read_text(errors="replace"))
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def write(path: Path, record: Record) -> None:
    """Put on disk, then renamed into place: never half of a record, not even after a power failure. On a full disk it
    is tried for a while: whoever filled it with half a checkpoint takes that away again, and a job's end must be
    known."""
    deadline = time.monotonic() + _FULL_DISK_SECONDS
    while True:
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            with temporary.open("w") as file:
                file.write(json.dumps(record))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            return
        except OSError as error:
            temporary.unlink(missing_ok=True)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
