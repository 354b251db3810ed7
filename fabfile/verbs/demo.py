"""`fab demo`: from `up` to `destroy` on this machine, by the commands that a user would type."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import backends, job_file
from fabfile.output import is_terminal, say
from fabfile.stacks import orphans, pulumi_cli, removal

STACKS = {"none": "demo", "slurm": "demo-slurm", "kubernetes": "demo-kubernetes"}
"""Who runs the jobs -> the demo's stack for that."""
_UP_TIMES = {
    "none": "3 s; the first time on this machine 2 minutes more, in which their image is made",
    "slurm": "3 s; the first time on this machine 2 minutes more, in which their image is made",
    "kubernetes": "half a minute; the first time on this machine 6 to 14 minutes more, in which their image and "
    "Kubernetes' programs are made",
}
"""How long `up` takes on two idle cores, by who runs the jobs."""
JOB = "demo"
FAB = (sys.executable, "-m", "fabfile")
PROMPT = "def "


@dataclass(frozen=True)
class Part:
    """A part of the demo: one verb."""

    subject: str
    """What happens in it."""
    time: str
    """How long it takes on two idle cores, in words."""
    argv: list[str]
    """The verb with its arguments."""


def story(job: str, scheduler: str = "none") -> tuple[Part, ...]:
    """The demo's parts in order, from `up` to the text that a job's model writes."""
    training = "half a minute" if job == JOB else "some seconds"
    return (
        Part(
            "three machines on this one, each with its own systemd, sshd and address",
            _UP_TIMES[scheduler],
            ["up", "--yes"],
        ),
        Part("follow their boot until all are ready", "5 s", ["wait"]),
        Part("is everything as training needs it?", "10 s", ["check"]),
        Part(
            "a text that every machine has, the source of Python's standard library, as tokens on every node",
            "5 s",
            ["prepare", job],
        ),
        Part("a small GPT, trained by all three in step", f"10 s to start, then {training}", ["train", job]),
        Part("what it has learned", "5 s", ["sample", f"{job}-1", "--prompt", PROMPT, "--tokens", "120"]),
    )


@task(
    help={
        "scheduler": "who runs the job: none is our own launcher over SSH, slurm is Debian's Slurm, or kubernetes",
        "job": "the GPT's job file; smoke is a minute's",
    }
)
def demo(_c: Context, scheduler: str = "none", job: str = JOB) -> None:
    """Stand up a cluster on this machine, train a GPT on it, sample from it, and leave nothing behind."""
    if scheduler not in STACKS:
        raise Exit(f"--scheduler {scheduler}: must be {' or '.join(STACKS)}", code=2)
    stack, began = STACKS[scheduler], time.monotonic()
    with _given_back(), _the_only_one():
        _refuse_to_take_over(stack)
        try:
            for part in story(job, scheduler):
                _run_part(part, stack)
            say("\n# the job's figures, with those of gzip on the same text (about 3 s)")
            figures = _figures(stack, f"{job}-1")
        except BaseException:
            say("\nthe demo did not finish: taking its cluster down")
            _verb(["destroy", "--yes"], stack)
            raise
        _run_part(Part("and nothing stays", "3 s", ["destroy", "--yes"]), stack)
    say("\n" + "\n".join(f"{name:<22} {value}" for name, value in figures))
    say(f"{'the whole story':<22} {time.monotonic() - began:.0f} s")
    say("next: fab up   (the same as your own cluster, to keep: stacks/Pulumi.local.yaml)")


@contextmanager
def _the_only_one() -> Iterator[None]:
    """Hold the user's lock on demos, which ends with the process. Exit 1 names the process that holds it."""
    path = Path.home() / ".trainyard" / "demo.lock"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another one"
            raise Exit(f"a demo is running already (process {holder}): wait for it, or interrupt it", code=1) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
        path.unlink(missing_ok=True)


def _refuse_to_take_over(stack: str) -> None:
    """Exit 1 if a cluster of the demo's name exists: this demo must not use or remove it."""
    found = orphans.find(stack, [], orphans.facts_of(stack))
    whose = ", ".join(sorted({str(each["whose"]) for each in orphans.strangers(found)}))
    if whose:
        raise Exit(f"stack {stack} on this machine belongs to {whose}: wait until it is gone", code=1)
    if found or removal.names(stack):
        raise Exit(
            f"stack {stack} exists already, made by you: use it (fab status --stack {stack}), or remove it: "
            f"fab destroy --stack {stack}",
            code=1,
        )


def _run_part(part: Part, stack: str) -> None:
    """Print what comes and about how long it takes, and run it. Exit with its code if it fails."""
    argv = [*part.argv, *_few_steps(part.argv)]
    say(f"\n# {part.subject} (about {part.time})\n$ fab {' '.join(argv)} --stack {stack}")
    code = _verb(argv, stack)
    if code != 0:
        raise Exit(f"the demo stopped: fab {' '.join(argv)} ended with exit code {code}", code=code)


def _few_steps(argv: list[str]) -> list[str]:
    """On a terminal a job's steps are one live line; elsewhere print about ten of them."""
    if argv[0] != "train" or is_terminal(sys.stdout):
        return []
    steps = int(tomllib.loads(job_file.resolve(argv[1], [], ranks=1).text)["train"]["steps"])
    return ["--every", str(max(1, steps // 10))]


def _verb(argv: list[str], stack: str) -> int:
    return pulumi_cli.follow([*FAB, *argv, "--stack", stack])


def _figures(stack: str, job: str) -> list[tuple[str, str]]:
    """Figures from the run's own files, with gzip on the same held-out text as a baseline."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pulumi_cli.ask([*FAB, "fetch", job, "--to", name, "--stack", stack])
        steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        newest = int((folder / "checkpoints/latest").read_text())
        state = json.loads((folder / f"checkpoints/step-{newest:06}/state.json").read_text())
        record = json.loads((folder / "state.json").read_text())
        data = str(tomllib.loads((folder / "job.toml").read_text())["data"]["path"])
    with backends.connect(stack, "") as backend:
        baselines = json.loads(backend.run_program("data.token_set", data, "--gzip"))
    return _rows(steps, state, record, baselines)


def _rows(
    steps: list[dict[str, Any]], state: dict[str, Any], job: dict[str, Any], baselines: dict[str, float]
) -> list[tuple[str, str]]:
    first, last = steps[0], steps[-1]
    seconds = last["time"] - first["time"]
    speed = (last["tokens"] - first["tokens"]) / seconds
    compared = ", ".join(f"{name} {value:.3f}" for name, value in baselines.items())
    cost = job["price_per_hour"] * (job["ended"] - job["started"]) / 3600
    return [
        ("nodes", ", ".join(job["nodes"])),
        ("steps", f"{last['step']} in {seconds:.0f} s, {speed:,.0f} tokens/s"),
        ("loss", f"{first['loss']:.3f} -> {last['loss']:.3f}, validation {last['val_loss']:.3f}"),
        ("bits per byte", f"{last['val_bits_per_byte']:.3f} on files that it never saw ({compared})"),
        ("ranks in step", f"{len(state['ranks'])} of {len(job['nodes'])}, all with parameters {state['parameters']}"),
        ("cost", f"${cost:.2f}"),
    ]


@contextmanager
def _given_back() -> Iterator[None]:
    """After the body, even if it fails, give the user of sudo all that root owns in ~/.trainyard, ~/.pulumi and the
    checkout's .pulumi.

    Does nothing if HOME is not the user's: sudo may have set it to root's.
    """
    try:
        yield
    finally:
        user = _user()
        home = Path.home()
        if user is not None and home.stat().st_uid == user[0]:
            for folder in (home / ".trainyard", home / ".pulumi", pulumi_cli.ROOT / ".pulumi"):
                _give(folder, *user)


def _give(folder: Path, uid: int, gid: int) -> None:
    """Give a folder and all in it that root owns to a user. Follows no link, which could lead to root's own files."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for _, folders, files, here in os.fwalk(folder, follow_symlinks=False):
            for name in (".", *folders, *files):
                with suppress(FileNotFoundError):  # it was removed meanwhile
                    status = os.stat(name, dir_fd=here, follow_symlinks=False)
                    if status.st_uid == 0 and (stat.S_ISDIR(status.st_mode) or status.st_nlink == 1):
                        os.chown(name, uid, gid, dir_fd=here, follow_symlinks=False)


def _user() -> tuple[int, int] | None:
    """The ids of the user who called sudo; None for root itself, and without sudo."""
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() != 0 or not uid.isdecimal() or not gid.isdecimal() or int(uid) == 0:
        return None
    return int(uid), int(gid)
