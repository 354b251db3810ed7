"""The user's program of `fab launch`: made of the command line and of launch.toml, or of the job to go on with."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from invoke.exceptions import Exit

from fabfile import launch_file
from fabfile.backends.submission import Begun
from fabfile.launch_file import LaunchFile
from fabfile.launchers.program import GRACE, PER, SLOT, Program
from fabfile.output import say
from fabfile.question import ask
from fabfile.workdir import requirements

OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables that every process gets from us, beside those that begin as _OUR_BEGINNINGS say."""
_OUR_BEGINNINGS = ("TRAINYARD_", "PMI_", "SLURM_")
_NO_PROGRAM = "which program? fab launch [options] -- COMMAND ..., or command = [...] in launch.toml"
_SCRIPTS = (".py", ".sh")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line of `fab launch` says; empty or None: nothing."""

    command: tuple[str, ...] = ()
    name: str = ""
    per: str = ""
    environment: tuple[str, ...] = ()  # NAME=VALUE
    secrets: tuple[str, ...] = ()
    requirements: str = ""  # a file
    grace: float | None = None


def new(asked: Asked, file: LaunchFile) -> Program:
    """The program of a new job, without its working directory. The command line wins over the file. Exit 2."""
    argv = asked.command or file.command
    if not argv:
        raise Exit(_NO_PROGRAM, code=2)
    wanted = asked.requirements or file.requirements
    return _checked(
        Program(
            argv=argv,
            name=_named(asked.name) or file.name or name_of(argv),
            per=_per(asked.per) or file.per or SLOT,
            environment=tuple({**dict(file.environment), **_environment(asked.environment)}.items()),
            secrets=tuple(dict.fromkeys([*file.secrets, *asked.secrets])),
            requirements=requirements.read(Path(wanted).expanduser()) if wanted else "",
            grace=_first(asked.grace, file.grace, GRACE),
        )
    )


def resumed(begun: Begun, asked: Asked, sent: Sequence[str]) -> Program:
    """The program of the job to go on with, with what the command line changes; prints that. `sent`: the names of the
    secrets that this machine has sent with it before. Of those that only the head's record names it asks. Exit 2 for
    another kind of job, and where nobody can be asked."""
    before = begun.program
    if before is None:
        raise Exit(f"{begun.id} ran the trainer: go on with it by fab train --resume {begun.id}", code=2)
    if asked.name and asked.name != before.name:
        raise Exit(f"--name {asked.name}: {begun.id} keeps its name", code=2)
    after = replace(
        before,
        argv=asked.command or before.argv,
        per=_per(asked.per) or before.per,
        environment=tuple({**dict(before.environment), **_environment(asked.environment)}.items()),
        secrets=tuple(dict.fromkeys([*sent, *before.secrets, *asked.secrets])),
        grace=_first(asked.grace, before.grace),
    )
    if asked.requirements:
        after = replace(after, requirements=requirements.read(Path(asked.requirements).expanduser()))
    if after.argv != before.argv:
        say(f"{begun.id}: command: {before.shell} -> {after.shell}")
    checked = _checked(after)
    _ask_for_secrets(begun.id, [name for name in before.secrets if name not in {*sent, *asked.secrets}])
    return checked


def _ask_for_secrets(job: str, names: Sequence[str]) -> None:
    """Ask whether secrets may go that only the head's record names. `--yes` is no answer: it names none. Exit 1 for no,
    2 if nobody can be asked."""
    if not names:
        return
    what = f"{job}: its record on the head names secrets that this machine has not sent with it: {', '.join(names)}"
    if sys.stdin is None or not sys.stdin.isatty():
        options = " ".join(f"--secret {name}" for name in names)
        raise Exit(f"{what}; there is no terminal to ask on: if they may go there, add {options}", code=2)
    ask(f"{what}\nsend their values there?")


def name_of(argv: Sequence[str]) -> str:
    """A job's name from its command: `train` of `python train.py` and of `torchrun --nnodes 2 my/Train.py --lr 1`."""
    script = next((word for word in argv if word.endswith(_SCRIPTS) and not re.search(r"\s", word)), "")
    module = argv[argv.index("-m") + 1] if "-m" in argv[:-1] else ""
    word = PurePosixPath(script).stem or module.rpartition(".")[2] or PurePosixPath(argv[0]).name
    name = re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")[: launch_file.LONGEST_NAME].strip("-")
    return name if re.match("[a-z]", name) else f"job-{name}".strip("-")


def _named(text: str) -> str:
    if text and not launch_file.JOB_NAME.fullmatch(text):
        raise Exit(f"--name {text}: must be {launch_file.JOB_NAME_FORM}", code=2)
    return text


def _per(text: str) -> str:
    if text and text not in PER:
        raise Exit(f"--per {text}: must be {', '.join(PER[:-1])} or {PER[-1]}", code=2)
    return text


def _environment(given: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE as a mapping."""
    found = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign:
            raise Exit(f"--env {text}: must be NAME=VALUE", code=2)
        found[name] = value
    return found


def _checked(program: Program) -> Program:
    """Exit 2 for variables that cannot be, for secrets that this command does not have, and for days of grace."""
    if not program.grace <= launch_file.MOST_GRACE:  # inf and nan, too
        raise Exit(f"--grace {program.grace:g}: must be a number of seconds from 0 to {launch_file.MOST_GRACE}", code=2)
    for name in (*dict(program.environment), *program.secrets):
        try:
            launch_file.variable(name, "environment")
        except ValueError as error:
            raise Exit(str(error), code=2) from None
        if name in OURS or name.startswith(_OUR_BEGINNINGS):
            raise Exit(f"variable {name}: is set for every process by fab launch: leave it out", code=2)
    for name in program.secrets:
        if name in dict(program.environment):
            raise Exit(f"variable {name}: is named as a secret, and with a value that is none", code=2)
        if name not in os.environ:
            raise Exit(f"secret {name}: is not set here: its value is taken from your own environment", code=2)
    return program


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)
