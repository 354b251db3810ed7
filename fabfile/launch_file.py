"""Reads launch.toml: what `fab launch` runs, so that it need not stand on the command line."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit

from fabfile.command_line import meant
from fabfile.launchers.program import PER

NAME = "launch.toml"
LONGEST_NAME = 40
JOB_NAME = re.compile(rf"[a-z][a-z0-9-]{{0,{LONGEST_NAME - 1}}}")
JOB_NAME_FORM = f"1 to {LONGEST_NAME} of a-z, 0-9 and -, a letter first"
MOST_GRACE = 86400
"""Seconds."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST = 1 << 20  # bytes


@dataclass(frozen=True, kw_only=True)
class LaunchFile:
    """The keys of launch.toml; what it does not say is empty. The command line wins over each of them."""

    name: str = ""
    """The job is called NAME-NUMBER."""
    per: str = ""
    """One process for each `slot`, on each `node`, or on the first node, the `head`."""
    workdir: str = ""
    """The folder that goes along; relative to the folder of launch.toml."""
    requirements: str = ""
    """A file with more Python packages, in pip's form; relative to the folder of launch.toml."""
    grace: float | None = None
    """Seconds that the program has to end after `fab stop`."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables of the program."""
    secrets: tuple[str, ...] = ()
    """Names of variables whose values the program gets from the operator's environment."""
    command: tuple[str, ...] = ()
    """The program and its arguments: a list, or one text that is split as a shell would."""


def find(workdir: Path, given: str = "") -> LaunchFile:
    """The file `given`, or the launch.toml of a working directory if it has one. Exit 2."""
    if given:
        return load(Path(given).expanduser())
    return load(workdir / NAME) if (workdir / NAME).is_file() else LaunchFile()


def load(path: Path) -> LaunchFile:
    """Read a file. Exit 2, with one line, for what is wrong in it."""
    try:
        if path.stat().st_size > _LONGEST:
            raise Exit(f"{path}: has more than {_LONGEST >> 20} MiB", code=2)
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Exit(f"{path}: {error.strerror}", code=2) from None
    except (ValueError, RecursionError) as error:
        raise Exit(f"{path}: not TOML: {error}", code=2) from None
    try:
        return _read(table, path.parent)
    except ValueError as error:
        raise Exit(f"{path}: {error}", code=2) from None


def _read(table: Mapping[str, Any], folder: Path) -> LaunchFile:
    known = [field.name for field in fields(LaunchFile)]
    for key in table:
        if key not in known:
            raise ValueError(f"there is no key {key!r}{meant(key, known)} (the keys: {', '.join(known)})")
    return LaunchFile(
        name=_name(table.get("name", "")),
        per=_per(table.get("per", "")),
        workdir=_place(table, "workdir", folder),
        requirements=_place(table, "requirements", folder),
        grace=_grace(table.get("grace")),
        environment=_environment(table.get("environment", {})),
        secrets=_names(table.get("secrets", [])),
        command=_command(table.get("command", [])),
    )


def _name(value: object) -> str:
    if value != "" and not (isinstance(value, str) and JOB_NAME.fullmatch(value)):
        raise ValueError(f"name = {value!r}: must be {JOB_NAME_FORM}")
    return str(value)


def _per(value: object) -> str:
    if value not in ("", *PER):
        raise ValueError(f"per = {value!r}: must be {', '.join(PER[:-1])} or {PER[-1]}")
    return str(value)


def _place(table: Mapping[str, Any], key: str, folder: Path) -> str:
    value = table.get(key, "")
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{key} = {value!r}: must be a path, as text")
    return str(folder / Path(value).expanduser()) if value else ""


def _grace(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_GRACE:
        raise ValueError(f"grace = {value!r}: must be a number of seconds from 0 to {MOST_GRACE}")
    return float(value)


def _environment(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise ValueError(f'environment = {value!r}: must be a table: [environment], and below it NAME = "value"')
    for name, text in value.items():
        variable(name, "environment")
        if not isinstance(text, str) or "\0" in text:
            raise ValueError(f'environment.{name} = {text!r}: must be text: {name} = "..."')
    return tuple(value.items())


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"secrets = {value!r}: must be a list of names of variables")
    for name in value:
        variable(name, "secrets")
    return tuple(dict.fromkeys(value))


def _command(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            raise ValueError(f"command = {value!r}: {error}") from None
    if not isinstance(value, list) or not all(isinstance(one, str) and "\0" not in one for one in value):
        raise ValueError(f"command = {value!r}: must be a list of words, or one text")
    return tuple(value)


def variable(name: str, where: str) -> None:
    """ValueError for what cannot be the name of a variable; `where` it was given."""
    if not _VARIABLE.fullmatch(name):
        raise ValueError(f"{where}: {name!r} is no name of a variable: letters, digits and _, and no digit first")
