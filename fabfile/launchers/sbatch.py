"""The batch script of a Slurm job: a pure function, with which `fab train --dry-run` prints what the head submits.

The script's program is the job's supervisor (node/job/supervisor.py). Slurm runs it on the first of the job's nodes.
"""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass

from fabfile.launchers import SYSTEM_PYTHON

SCRIPT = "job.sbatch"
"""The script's name in the job's run directory."""
OUTPUT = "slurm.out"
"""What the supervisor itself prints, most often nothing; in the run directory, too."""
WARNING = 120
"""Seconds before a time limit of Slurm's own (a partition's) at which the supervisor is told, for a checkpoint; of a
limit under 8 minutes a quarter, as of ours (node/job/time_limit.py)."""
EARLY = 60
"""Slurm may tell it up to so many seconds earlier."""
_COMMENT = "trainyard"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A job as Slurm is asked for it."""

    id: str
    """Ours. Slurm's own numbers begin at 1 again in a new cluster."""
    nodes: int
    slots: int
    """Ranks on each node."""
    run_dir: str
    """The job's directory, absolute and on storage that all nodes share."""
    program: str
    """The node program (see node/main.py), on storage that all nodes share."""
    partition: str = ""
    """Empty: Slurm's default one."""
    gpus: int = 0
    """GPUs of each node."""
    restarts: int = 0
    """How often the job may be started again; above 0 Slurm requeues it if its first node dies."""
    time_limit: float = 0.0
    """Seconds; 0: the partition's limit."""
    exclude: tuple[str, ...] = ()
    """Names of nodes that Slurm must not choose."""
    warning: int = WARNING
    """Seconds before a limit of Slurm's own at which the supervisor is told."""


def comment(job: str) -> str:
    """The comment by which a Slurm job is known as the one with this id of ours."""
    return f"{_COMMENT}:{job}"


def id_of(comment: str) -> str:
    """The reverse of `comment`; empty for a job that is not ours."""
    mark, _, job = comment.partition(":")
    return job if mark == _COMMENT else ""


def script(batch: Batch) -> str:
    """The text of the batch script."""
    options = [
        f"--job-name={batch.id}",
        f"--comment={comment(batch.id)}",
        *([f"--partition={batch.partition}"] if batch.partition else []),
        f"--nodes={batch.nodes}",
        f"--ntasks-per-node={batch.slots}",
        "--exclusive",
        "--mem=0",
        f"--output={batch.run_dir}/{OUTPUT}",
        "--open-mode=append",
        "--chdir=/",
        "--requeue" if batch.restarts else "--no-requeue",
        *([f"--gpus-per-node={batch.gpus}"] if batch.gpus else []),
        *([f"--exclude={','.join(batch.exclude)}"] if batch.exclude else []),
        # With a limit of ours the supervisor counts the time itself, exactly; Slurm knows whole minutes.
        *([f"--time={math.ceil(batch.time_limit / 60)}"] if batch.time_limit else [f"--signal=B:USR1@{batch.warning}"]),
    ]
    program = shlex.join([SYSTEM_PYTHON, "-I", batch.program, "supervise", batch.run_dir])
    # Ignored until the supervisor hears it: a warning in its first moments would kill it, with the job.
    lines = ["#!/bin/sh", *(f"#SBATCH {option}" for option in options), "trap '' USR1", f"exec {program}", ""]
    return "\n".join(lines)
