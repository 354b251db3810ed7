"""Where a job's files are; reads and writes its records, and reads the node's.

runs/ID/ on every node
    job.toml             the resolved job, or program.json: a user's program in the trainer's place
    work/                where such a program runs
    checkpoints/, heartbeat/, metrics.jsonl ...: the trainer's
    nodes/NODE/          rank-N.log and rank-N.json of the ranks of that node
runs/ID/ on the head, too
    spec.json            what the user asked for: JobSpec in spec.py
    state.json           the job's state (one of STATES), times and exit code
    usage.jsonl          what its ranks used on their nodes: see usage.py
    log, log.START       every line of every rank: time, node, rank, text; rotated, see log.py
    stop.json            exists if a user has asked for the job to stop
/run/trainyard-secrets-UID/ID.json on the head only: rank 0's secrets, such as the key of Weights & Biases. In memory,
                         never in runs/, which the nodes may share; kept until the job is over, as a restart needs it
                         ID.node.json on every node, during an attempt: the secrets of a user's program
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STATES = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED")
OVER = STATES[2:]
LEASE = 6.0
"""After this many seconds without a message from the head a node ends its ranks, and without one from a node the head
counts the node as lost."""
PROGRAM = "program.json"
"""In a run directory: the user's program that runs in the trainer's place; its record as Program.to_record makes it."""
WORLD = "world.json"
STOP_BY = "stop-by.json"
"""In the folder of a node's ranks: which ranks of an elastic job train together (training/parallel/world.py)."""
JOB = Path("/var/lib/trainyard/job.json")
"""On a node: the job that it is busy with, for `fab status`."""
LIMITS = Path("/run/trainyard/limits.json")
"""On a node with limits: when it ends; written by bootstrap/limits.py."""
NOTICE = Path("/run/trainyard/notice.json")
"""On a node that its cloud is about to take back: when and why; written by bootstrap/notice.py."""
SECRETS = Path(f"/run/trainyard-secrets-{os.getuid()}")
"""Not /run/user/UID or /dev/shm: systemd empties both when the user logs out, while the job goes on."""
TIME = re.compile(r"\d{1,10}\.\d{3}")
"""The time of a log line in seconds of Unix time. A line that does not begin so was cut by a full disk or a crash."""
_FULL_DISK_SECONDS = 5.0

Record = dict[str, Any]


def absolute(run_dir: str) -> Path:
    """A job's directory; a relative path starts at the home directory."""
    return Path.home() / run_dir


def unit_of(job: str) -> str:
    """The stem of the names of the job's units: .service on the head, .scope and -keeper.service on every node."""
    return f"trainyard-job-{job}"


def secrets_of(job: str) -> Path:
    """The file with a job's secrets, on the head."""
    return SECRETS / f"{job}.json"


def node_secrets_of(job: str) -> Path:
    """The file with the secrets of a user's program, on every node of its job."""
    return SECRETS / f"{job}.node.json"


def write_secrets(file: Path, secrets: Mapping[str, str]) -> None:
    """Write secrets, or remove the file if there are none. It is in memory, and only its owner can read it."""
    file.unlink(missing_ok=True)
    if not secrets:
        return
    owner = ["-o", str(os.getuid()), "-g", str(os.getgid())]
    subprocess.run(["sudo", "-n", "install", "-d", "-m", "0700", *owner, str(SECRETS)], check=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as output:
        json.dump(dict(secrets), output)


def read(path: Path) -> Record:
    """A record; empty if there is none or the file is damaged. A machine that lost power can leave an empty or cut
    file, and one such file must not make the verbs fail for all jobs, or for the node."""
    return parsed(text(path))


def text(path: Path) -> str:
    """A file's text, with invalid UTF-8 replaced; empty if there is no file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def parsed(line: str) -> Record:
    """The object of a line of JSON; empty if it is anything else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def write(path: Path, record: Record) -> None:
    """Write a record to disk, then rename it into place, so that no half record remains even after a power failure. On
    a full disk it tries for 5 s, in which a checkpoint that did not fit is removed; then it raises OSError."""
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
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            if time.monotonic() > deadline:
                raise OSError(error.errno, error.strerror, str(path)) from None  # write's error has no name
            time.sleep(0.2)
