"""Download a program's extra packages here, for nodes that reach no package index: as wheels that fit the nodes.

pip resolves as it would on a node. What the node's image has is offered to it as wheels without content, of the very
versions there: so a package that needs torch does not bring torch along. pip reads markers such as
`sys_platform == "linux"` for the machine that it runs on: on a mac what Linux alone needs is not found, and the node's
own pip then names it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from invoke.exceptions import Exit

from fabfile.output import say
from fabfile.remote.wheel import archive
from node.requirements import last_lines

_SHOWN = ("Collecting", "Downloading")
_OLDEST = 17
"""Of glibc 2: manylinux2014's, the oldest for which wheels are made now."""


@dataclass(frozen=True)
class Fits:
    """What wheels for a node have to fit, as it says itself (node/requirements.py)."""

    python: str  # such as 3.11
    machine: str  # such as x86_64
    glibc: str  # such as 2.36
    has: Sequence[str]  # name==version of the image's packages
    constraints: Sequence[str]  # likewise, of those that the requirements may not change

    @property
    def tags(self) -> tuple[str, ...]:
        """The platforms whose wheels the node takes, the best ones first (PEP 600)."""
        newest = int(self.glibc.partition(".")[2] or _OLDEST)
        numbers = range(newest, _OLDEST - 1, -1)
        return (*(f"manylinux_2_{number}_{self.machine}" for number in numbers), f"manylinux2014_{self.machine}")

    @property
    def abi(self) -> str:
        """Such as cp311."""
        return f"cp{self.python.replace('.', '')}"


def downloaded(text: str, fits: Fits, folder: Path) -> list[Path]:
    """The wheels of these requirements and of all that they need beside the image's packages, in a folder of `folder`.
    Exit 1 with pip's last lines."""
    image, found = folder / "image", folder / "wheels"
    image.mkdir()
    empty = {_write_empty(each, fits, image) for each in fits.has}
    files = {"requirements.txt": text, "constraints.txt": "".join(f"{each}\n" for each in fits.constraints)}
    for name, content in files.items():
        (folder / name).write_text(content)
    options = ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "--only-binary=:all:"]
    options += [f"--python-version={fits.python}", "--implementation=cp"]
    options += [f"--abi={abi}" for abi in (fits.abi, "abi3", "none")]
    options += [f"--platform={tag}" for tag in (*fits.tags, f"linux_{fits.machine}", "any")]
    options += [f"--find-links={image}", f"--dest={found}", f"--constraint={folder / 'constraints.txt'}"]
    _run([sys.executable, "-m", "pip", "download", *options, f"--requirement={folder / 'requirements.txt'}"])
    wheels = sorted(path for path in found.iterdir() if path.name not in empty)
    if others := [path.name for path in wheels if path.suffix != ".whl"]:
        why = "nodes that reach no package index get wheels alone"
        raise Exit(f"requirements: {', '.join(others)}: not a wheel; {why}", code=1)
    return wheels


def _run(argv: list[str]) -> None:
    last: list[str] = []
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            if line.strip():
                last = last_lines(last, line)
            if line.strip().startswith(_SHOWN):
                say(line.rstrip())
    if pip.returncode != 0:
        why = "\n  ".join(last or [f"exit code {pip.returncode}"])
        raise Exit(f"requirements: pip on this machine failed:\n  {why}", code=1)


def _write_empty(package: str, fits: Fits, folder: Path) -> str:
    """Write a wheel of this name and version without content, for the best of the platforms, so that it comes before
    all others; returns its file's name."""
    name, version = package.split("==")
    stem = f"{re.sub(r'[-_.]+', '_', name)}-{version}"
    tag = f"{fits.abi}-{fits.abi}-{fits.tags[0]}"
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: trainyard\nRoot-Is-Purelib: false\nTag: {tag}\n",
        "RECORD": "",
    }
    content = archive({f"{stem}.dist-info/{file}": text.encode() for file, text in files.items()})
    (folder / f"{stem}-{tag}.whl").write_bytes(content)
    return f"{stem}-{tag}.whl"
