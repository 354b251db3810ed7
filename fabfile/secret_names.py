"""Names of the secrets that this machine has sent with a job: ~/.trainyard/CLUSTER/launched/JOB.json, without values.

The record on the head names them, too, but the job can write there: a name that stands there alone would have the
operator's cloud keys sent to it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from invoke.exceptions import Exit

from fabfile.backends.job_answer import check_job_id
from fabfile.remote.known_hosts import LAUNCHED, directory, write


def keep_secret_names(cluster: str, job: str, names: Sequence[str]) -> None:
    """Record the names of a job's secrets, in place of those of an earlier start. Exit 1 for an id that is none."""
    path = _path_of(cluster, job)
    if names:
        write(path, json.dumps({"secrets": list(names)}))
    else:
        path.unlink(missing_ok=True)


def kept_secret_names(cluster: str, job: str) -> tuple[str, ...]:
    """The recorded names, none without a record. Exit 1 for an id that is none, 2 for a record that is damaged."""
    path = _path_of(cluster, job)
    try:
        names = json.loads(path.read_text(encoding="utf-8"))["secrets"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("secrets is no list of names")
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError) as error:
        raise Exit(f"{path}: not a record of secrets ({error}): remove it, and name them by --secret", code=2) from None
    return tuple(names)


def _path_of(cluster: str, job: str) -> Path:
    try:
        check_job_id(job)
    except ValueError as error:
        raise Exit(f"{cluster}: {error}", code=1) from None
    return directory(cluster) / LAUNCHED / f"{job}.json"
