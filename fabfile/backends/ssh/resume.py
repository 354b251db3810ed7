"""`fab train --resume ID`: a job goes on with its own settings, whatever a file of its name says by now.

Its job.toml is on the head; where the head has nothing of it (another cluster began it), it is in the job's mirror, the
bucket's folder of the job. `section.key=value` changes it, and every change is said.
"""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit

from fabfile.backends.ssh import mirror
from fabfile.backends.ssh.head import Head, runs, state
from fabfile.job_file import Resolved, resolve
from fabfile.output import say
from infra.inventory import Node, SshCluster


@dataclass(frozen=True)
class Before:
    """A job as it was begun."""

    id: str
    text: str
    """Its job.toml."""
    nodes: int
    """How many it was started on; 0: not known."""
    mirrored: bool
    """Its mirror alone knows of it."""
    succeeded: bool


def before(head: Head, wanted: str, job: str, overrides: Sequence[str]) -> Before:
    """The job of an id, a number or `latest`; Exit 2 where neither the head nor the mirror has it.

    `job` is the file that was given with --resume: it counts only where the job's own file is nowhere to be had.
    """
    url = _mirror_of(head.cluster, job, overrides)
    if mirror.has(head, url, wanted):
        text = mirror.job_file(head, f"{url.rstrip('/')}/{wanted}")
        if not text and not job:
            raise Exit(f"{url}/{wanted} has no job.toml: name the job: fab train JOB --resume {wanted}", code=2)
        if not text:
            say(f"{wanted}: its mirror has no job.toml; {job} is taken for it")
        return Before(wanted, text or resolve(job, (), 1).text, 0, mirrored=True, succeeded=False)
    found = state(head, wanted)
    id_ = str(found["id"])
    own = head.ask("job", runs(head.cluster), id_)
    if not own["job"]:
        raise Exit(f"{head.node.name}: {id_} has no job.toml: it cannot be gone on with", code=2)
    return Before(id_, own["job"], int(own["nodes"]), mirrored=False, succeeded=found["state"] == "SUCCEEDED")


def nodes(cluster: SshCluster, before: Before, count: int) -> tuple[Node, ...]:
    """As many nodes as the job had, unless `count` says how many; fewer where the cluster has no more."""
    chosen = cluster.nodes[: count or before.nodes or len(cluster.nodes)]
    if not count and 0 < before.nodes != len(cluster.nodes):
        had = f"{before.nodes}, as it had" if len(chosen) == before.nodes else f"{len(chosen)}; it had {before.nodes}"
        say(f"{before.id}: nodes: {had} (--nodes N changes that)")
    return chosen


def settings(before: Before, job: str, overrides: Sequence[str], ranks: int) -> Resolved:
    """The job's own settings with these overrides; says what they change, and which of a given file's do not count."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.toml"
        file.write_text(before.text, encoding="utf-8")
        as_begun = resolve(str(file), (), ranks)
        resolved = resolve(str(file), overrides, ranks)
    changes = differences(as_begun.text, resolved.text)
    for change in changes:
        say(f"{before.id}: {change}")
    _refuse_a_finished_run(before, as_begun, resolved)
    if job:
        _tell_of_file(before, job, overrides, resolved, ranks)
    return resolved


def differences(old: str, new: str) -> list[str]:
    """`train.steps: 60 -> 600` for each key of two job files that is not the same."""
    first, second = _flat(old), _flat(new)
    keys = [*first, *(key for key in second if key not in first)]
    return [
        f"{key}: {first.get(key, 'not set')} -> {second.get(key, 'not set')}"
        for key in keys
        if first.get(key) != second.get(key)
    ]


def _flat(text: str) -> dict[str, Any]:
    tables: Mapping[str, Mapping[str, Any]] = tomllib.loads(text)
    return {f"{section}.{key}": value for section, values in tables.items() for key, value in values.items()}


def _refuse_a_finished_run(before: Before, as_begun: Resolved, resolved: Resolved) -> None:
    steps, more = (_flat(each.text)["train.steps"] for each in (as_begun, resolved))
    if before.succeeded and more <= steps:
        raise Exit(
            f"{before.id} has done its {steps} steps; to go on, give it more:"
            f" fab train --resume {before.id} train.steps={2 * steps}",
            code=2,
        )


def _tell_of_file(before: Before, job: str, overrides: Sequence[str], resolved: Resolved, ranks: int) -> None:
    """A file that was given beside --resume is not what the job goes on with."""
    other = differences(resolved.text, resolve(job, overrides, ranks, resolved.mirror).text)
    if other:
        say(f"{before.id}: keeps its own settings; {job} differs and is not read: {'; '.join(other)}")


def _mirror_of(cluster: SshCluster, job: str, overrides: Sequence[str]) -> str:
    """The folder in a bucket where the job may be mirrored: that of an override, of the file, or of the cluster."""
    for override in reversed(overrides):
        if override.startswith("checkpoint.mirror="):
            return override.partition("=")[2].strip("\"'")
    own = mirror.address(cluster)
    return resolve(job, (), 1, own).mirror if job else own
