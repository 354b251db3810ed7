"""What a bucket has of jobs, as the head sees it: names that are taken, and jobs that another cluster began."""

from __future__ import annotations

import shlex
import sys

from invoke.exceptions import Exit

from fabfile.backends.base import NO_MIRROR
from fabfile.backends.ssh.head import Head
from fabfile.launchers import VENV
from fabfile.output import say


def folders(head: Head, url: str) -> list[str]:
    """The ids of the jobs that have a folder in the mirror.

    None, with a warning, where it does not answer: a job whose name is taken there is then not mirrored, which its
    trainer notices.
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
    """The job.toml that a job's folder in the bucket has; empty: none. `url` is that folder."""
    program = f"{VENV}/python -m training.store read {shlex.quote(url)} job.toml"
    result = head.run(f"PYTHONPATH={head.folder} {program}")
    if not result.ok:
        raise Exit(f"{head.node.name}: {result.why}", code=1)
    return result.stdout
