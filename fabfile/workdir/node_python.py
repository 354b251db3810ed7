"""The Python environment of a node, as the node describes it: what wheels for it have to fit.

A job can make its node answer anything, and pip on this machine reads what is made of the answer. So every value has to
have its form, and a file for pip is written from the parsed values alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

_OLDEST_GLIBC = 17
"""Of glibc 2: manylinux2014's, the oldest for which wheels are made now."""
_MOST_PACKAGES = 5000
_LONGEST = 200
"""Characters of `name==version`."""
_PYTHON = re.compile(r"3\.[0-9]{1,2}")
_MACHINE = re.compile(r"[a-z0-9_]{1,16}")
_GLIBC = re.compile(r"2\.[0-9]{1,2}")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
"""https://packaging.python.org/en/latest/specifications/name-normalization/"""


@dataclass(frozen=True)
class PythonPackage:
    """A package in one version."""

    name: str  # as PEP 503 normalises it
    version: Version

    def __str__(self) -> str:
        """`name==version`"""
        return f"{self.name}=={self.version}"

    @property
    def stem(self) -> str:
        """How the names of the package's files begin: `name-version`."""
        return f"{self.name.replace('-', '_')}-{self.version}"


@dataclass(frozen=True)
class NodePython:
    """A node's Python, and the packages of its image."""

    version: str  # such as 3.11
    machine: str  # such as x86_64
    glibc: int | None  # such as 36 for 2.36; None: the node does not know it
    packages: tuple[PythonPackage, ...]  # the image's
    constraints: tuple[PythonPackage, ...]  # those of them that the requirements may not change

    @property
    def tags(self) -> tuple[str, ...]:
        """The platforms whose wheels the node takes, the best ones first (PEP 600)."""
        newest = self.glibc or _OLDEST_GLIBC
        numbers = range(newest, _OLDEST_GLIBC - 1, -1)
        newer = [f"manylinux_2_{number}_{self.machine}" for number in numbers]
        return (*newer, f"manylinux2014_{self.machine}")

    @property
    def abi(self) -> str:
        """Such as cp311."""
        return f"cp{self.version.replace('.', '')}"


def read_node_python(answer: object) -> NodePython:
    """Parse `fits` of a node's answer (node/requirements.py). ValueError, in one line, for anything else."""
    if not isinstance(answer, Mapping):
        raise ValueError("not an object")

    glibc = answer.get("glibc")
    if glibc != "":
        glibc = _text(answer, "glibc", _GLIBC)
    return NodePython(
        version=_text(answer, "python", _PYTHON),
        machine=_text(answer, "machine", _MACHINE),
        glibc=int(glibc.partition(".")[2]) if glibc else None,
        packages=_packages(answer, "has"),
        constraints=_packages(answer, "constraints"),
    )


def _text(answer: Mapping[Any, Any], key: str, form: re.Pattern[str]) -> str:
    value = answer.get(key)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise ValueError(f"{key} = {_shown(value)}")
    return value


def _packages(answer: Mapping[Any, Any], key: str) -> tuple[PythonPackage, ...]:
    values = answer.get(key)
    if not isinstance(values, list):
        raise ValueError(f"{key} = {_shown(values)}")
    if len(values) > _MOST_PACKAGES:
        raise ValueError(f"{key} lists {len(values)} packages; at most {_MOST_PACKAGES} are taken")
    return tuple(_package(key, value) for value in values)


def _package(key: str, value: object) -> PythonPackage:
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise ValueError(f"{key} lists {_shown(value)}")
    name, _, version = value.partition("==")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{key} lists {_shown(value)}")
    try:
        return PythonPackage(canonicalize_name(name), Version(version))
    except InvalidVersion:
        raise ValueError(f"{key} lists {_shown(value)}") from None


def _shown(value: object) -> str:
    """A value for a message: short, and with every unprintable character escaped."""
    return ascii(value)[:80]
