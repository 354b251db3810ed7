"""Read from the bucket, through the head, which job ids are taken, and the job files of other clusters' jobs."""

from __future__ import annotations

import shlex
import sys

from invoke.exceptions import Exit

from fabfile.backends.base import NO_MIRROR
from fabfile.backends.ssh.head import Head
from fabfile.launchers import VENV
from fabfile.output import say


def folders(head: Head, url: str) -> list[str]:
    """The ids of the jobs with a folder in the mirror.

    Empty, with a warning, if the bucket does not answer: if the job's name is then taken there, the trainer notices
    that, and does not mirror the job.
    """
    if url in NO_MIRROR:
        return []
    program = f"{VENV}/python -m training.store list {shlex.quote(url)}"
    result = head.run(f"PYTHONPATH={head.folder} {program}")
    if not result.ok:
        say(f"warning: {head.node.name}: the mirror cannot be asked: {result.why}", file=sys.stderr)
        return []
    return [line.partition("\t")[0] for line in result.stdout.splitlines() if line]


def job_file(head: Head, url: str) -> str:
    """The text of job.toml in a job's folder in the bucket; empty: none. `url` is that folder."""
    program = f"{VENV}/python -m training.store read {shlex.quote(url)} job.toml"
    result = head.run(f"PYTHONPATH={head.folder} {program}")
    if not result.ok:
        raise Exit(f"{head.node.name}: {result.why}", code=1)
    return result.stdout
