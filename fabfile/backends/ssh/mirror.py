"""What the cluster's bucket has of jobs: names that are taken, and jobs that a cluster before this one began."""

from __future__ import annotations

import shlex
import sys

from invoke.exceptions import Exit

from fabfile.backends.ssh.head import Head, runs
from fabfile.launchers import VENV
from fabfile.output import say
from infra.inventory import SshCluster

_NO_MIRROR = ("", "none")


def address(cluster: SshCluster) -> str:
    """The folder in the cluster's bucket that has a folder for each of its jobs; empty: it has no bucket."""
    return f"{cluster.data_url.rstrip('/')}/runs" if cluster.data_url else ""


def folders(head: Head, url: str) -> list[str]:
    """The jobs that the mirror has a folder of. One that cannot be asked is told of, and has none: a job whose name is
    taken there is not mirrored, which its trainer sees for itself."""
    if url in _NO_MIRROR:
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


def has(head: Head, url: str, job: str) -> bool:
    """Whether a job that this cluster knows nothing of can be gone on with from the mirror."""
    if url in _NO_MIRROR or any(each["id"] == job for each in head.ask("jobs", runs(head.cluster))):
        return False
    if job not in folders(head, url):
        return False
    say(f"{job} is not one of {head.cluster.name}'s jobs: going on from {url}/{job}")
    return True
