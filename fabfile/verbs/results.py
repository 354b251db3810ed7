"""`fab fetch` and `fab sample`: a job's files, and text from its model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import backends
from fabfile.backends.base import WEIGHTS, Backend, Ended, JobRecord, Refused, SampleOptions, Unreachable, find_job
from fabfile.command_line import AtLeast
from fabfile.download import download
from fabfile.launchers.program import WORK
from fabfile.output import next_command, say, write


@task(
    help={
        "to": "folder for it; default: runs/ID here; one that has the job already is updated",
        "all-nodes": "also what a program has written on the other nodes, into nodes/NODE/work",
        "weights": "only the best or newest model, put together of its shards, as Hugging Face's transformers opens it",
    }
)
def fetch(
    _c: Context,
    job: str,
    to: str = "",
    weights: bool = False,
    all_nodes: bool = False,
    stack: str = "",
    inventory: str = "",
) -> None:
    """Fetch a job's checkpoints, best model, metrics and logs from the head. Repeated, it fetches what is new."""
    if weights and all_nodes:
        raise Exit("--weights --all-nodes: the head has the model: choose one of them", code=2)
    with backends.connect(stack, inventory) as backend:
        if to:
            _check_target(Path(to).expanduser())
        found = find_job(backend, job)
        target = Path(to or f"runs/{found.id}").expanduser()
        _check_target(target)
        _check_same(target, found)
        try:
            if weights and found.program:
                raise Exit(f"{found.id} ran a program, not the trainer: leave out --weights", code=2)
            only = (backend.export_weights(found.id), "state.json") if weights else ()
            download(backend, found.id, target, only)
        except (Refused, Unreachable, EOFError, OSError) as error:
            raise Exit(f"{backend.host}: {found.id} was not fetched: {error}", code=1) from None
        if all_nodes:
            _fetch_others(backend, found, target)
    if weights:
        say(f"for transformers: from_pretrained({str(target / WEIGHTS)!r})")
        return
    if not found.program:
        say(next_command(f"fab sample {found.id} --prompt ..."))


def _fetch_others(backend: Backend, job: JobRecord, target: Path) -> None:
    """Fetch what a program has written in its working directory on the nodes beside the head."""
    others = backend.on_other_nodes(job)
    if not others:
        say("no other node has files of its own of this job")
    for name, files in others.items():
        try:
            download(files, job.id, target / "nodes" / name, (WORK,))
        except (Refused, Unreachable, EOFError, OSError) as error:
            raise Exit(f"{name}: {job.id} was not fetched: {error}", code=1) from None


def _check_target(target: Path) -> None:
    """Refuse, before any connection, a target that is not a folder and cannot become one."""
    for folder in (target, *target.parents):
        if folder.exists():
            if not folder.is_dir():
                raise Exit(f"--to {target}: {folder} is a file; name a folder", code=2)
            return


def _check_same(target: Path, job: JobRecord) -> None:
    """Refuse a folder with files of another run: two clusters may both have a job of this name."""
    if not target.exists() or not any(target.iterdir()):
        return
    other = Exit(f"{target}: has files that are not of {job.id}; name another folder with --to", code=2)
    try:
        there = json.loads((target / "state.json").read_text())
        same = there["id"] == job.id and there["started"] in (None, job.started)
    except (OSError, ValueError, KeyError, TypeError):
        raise other from None
    if not same:
        raise other


@task(
    help={
        "prompt": "what the text begins with; for a masked model a text with <mask> in it, which is filled",
        "tokens": "how many to make",
        "temperature": "0: the likeliest each time",
        "top-k": "choose among so many; 0: all",
        "seed": "of the choice",
    }
)
def sample(
    _c: Context,
    job: str,
    prompt: str = "\n",
    tokens: Annotated[int, AtLeast(1)] = 100,
    temperature: Annotated[float, AtLeast(0)] = 0.8,
    top_k: Annotated[int, AtLeast(0)] = 200,
    seed: Annotated[int, AtLeast(0)] = 1337,
    stack: str = "",
    inventory: str = "",
) -> None:
    """Sample text from a job's best or newest model, token by token."""
    with backends.connect(stack, inventory) as backend:
        found = find_job(backend, job)
        if found.program:
            raise Exit(f"{found.id} ran a program, not the trainer: its files: fab fetch {found.id}", code=2)
        id_ = found.id
        try:
            for part in backend.sample(id_, SampleOptions(prompt, tokens, temperature, top_k, seed)):
                if not isinstance(part, Ended):
                    write(part)
                    continue
                write(part.stderr, file=sys.stderr)
                if part.code != 0:
                    raise Exit(code=part.code)
        except Unreachable as error:
            raise Exit(f"{backend.host}: the connection was lost: {error}", code=1) from None
