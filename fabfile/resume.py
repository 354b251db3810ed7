"""`fab train --resume ID`: continue a job with its own job.toml and `section.key=value`; every change is printed.

The job.toml is on the head, or, if another cluster began the job, in the job's mirror: its folder in the bucket.
"""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit

from fabfile.backends.base import NO_MIRROR, Backend, JobState, find_job
from fabfile.backends.submission import Begun
from fabfile.job_file import Ranks, Resolved, resolve
from fabfile.output import say


def begun(backend: Backend, wanted: str, job: str, overrides: Sequence[str]) -> Begun:
    """The job by its id, its number or `latest`; Exit 2 if neither the cluster nor the mirror has it. `job` is the file
    given with --resume: it is used only if the job's own file is lost."""
    url = _mirror_of(backend.mirror, job, overrides)
    if url not in NO_MIRROR and all(each.id != wanted for each in backend.jobs()) and wanted in backend.mirrored(url):
        return _mirrored(backend, f"{url.rstrip('/')}/{wanted}", wanted, job)
    found = find_job(backend, wanted)
    own = backend.begun(found.id)
    if own.program:
        raise Exit(f"{own.id} ran a program, not the trainer: go on with it by fab launch --resume {own.id}", code=2)
    if not own.text:
        raise Exit(f"{backend.host}: {own.id} has no job.toml: it cannot be resumed", code=2)
    return replace(own, succeeded=found.state == JobState.SUCCEEDED)


def _mirrored(backend: Backend, url: str, wanted: str, job: str) -> Begun:
    """A job that another cluster began, from its folder in a bucket."""
    say(f"{wanted} is not one of {backend.name}'s jobs: resuming it from {url}")
    text = backend.mirrored_job(url)
    if not text and not job:
        raise Exit(f"{url} has no job.toml: name the job: fab train JOB --resume {wanted}", code=2)
    if not text:
        say(f"{wanted}: its mirror has no job.toml: using {job} instead")
    return Begun(wanted, text or resolve(job, (), 1).text, 0, mirrored=True)


def nodes(begun: Begun, there: int, count: int) -> int:
    """How many of `there` nodes the job continues on: `count`, or, if that is 0, as many as before. Prints which."""
    chosen = min(there, count or begun.nodes or there)
    if not count and 0 < begun.nodes != there:
        had = f"{begun.nodes}, as it had" if chosen == begun.nodes else f"{chosen}; it had {begun.nodes}"
        say(f"{begun.id}: nodes: {had} (--nodes N changes that)")
    return chosen


def settings(
    begun: Begun, job: str, overrides: Sequence[str], ranks: int | Ranks, *, elastic: bool = False
) -> Resolved:
    """The job's own settings with these overrides. Prints what they change, and which settings of a given file are
    ignored."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.toml"
        file.write_text(begun.text, encoding="utf-8")
        as_begun = resolve(str(file), (), ranks)
        resolved = resolve(str(file), overrides, ranks, elastic=elastic)
    changes = differences(as_begun.text, resolved.text)
    for change in changes:
        say(f"{begun.id}: {change}")
    steps, more = (_flat(each.text)["train.steps"] for each in (as_begun, resolved))
    if begun.succeeded and more <= steps:
        command = f"fab train --resume {begun.id} train.steps={2 * steps}"
        raise Exit(f"{begun.id} has done its {steps} steps; give it more to continue: {command}", code=2)
    other = differences(resolved.text, resolve(job, overrides, ranks, resolved.mirror).text) if job else []
    if other:
        say(f"{begun.id}: keeps its own settings; {job} differs and is not read: {'; '.join(other)}")
    return resolved


def differences(old: str, new: str) -> list[str]:
    """`train.steps: 60 -> 600` for each key that differs between two job files."""
    first, second = _flat(old), _flat(new)
    changed = [key for key in {**first, **second} if first.get(key) != second.get(key)]
    return [f"{key}: {first.get(key, 'not set')} -> {second.get(key, 'not set')}" for key in changed]


def _flat(text: str) -> dict[str, Any]:
    tables: Mapping[str, Mapping[str, Any]] = tomllib.loads(text)
    return {f"{section}.{key}": value for section, values in tables.items() for key, value in values.items()}


def _mirror_of(own: str, job: str, overrides: Sequence[str]) -> str:
    """The bucket's folder where the job may be mirrored: from an override, the file, or the cluster's own (`own`)."""
    for override in reversed(overrides):
        if override.startswith("checkpoint.mirror="):
            return override.partition("=")[2].strip("\"'")
    return resolve(job, (), 1, own).mirror if job else own
