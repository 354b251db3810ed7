"""Download a program's extra packages here, for nodes that reach no package index: as wheels that fit the nodes.

pip resolves as it would on a node. What the node's image has is offered to it as wheels without content, of the very
versions there: so a package that needs torch does not bring torch along. pip reads markers such as
`sys_platform == "linux"` for the machine that it runs on: on a mac what Linux alone needs is not found, and the node's
own pip then names it.

What a node says of itself, and the requirements of a job's record, are a job's to change. pip builds nothing here, and
gets only what was parsed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from invoke.exceptions import Exit

from fabfile.output import say
from fabfile.remote.wheel import archive
from fabfile.workdir.node_python import NodePython, PythonPackage
from fabfile.workdir.plain_requirements import plain_requirements
from node.requirements import last_lines

_SHOWN = ("Collecting", "Downloading")
_BUILDS = re.compile(r"(^|\s)--(no-b\w*|only-b\S*[\s=]+\S*:none:)")
"""Options of a requirements file that let pip build packages."""
_ADDRESS = re.compile(r"([\w+.-]+://[^\s?#;]*)\S*")
"""Of a package; pip builds one that is no wheel, whatever `--only-binary` says."""
_WHEEL = re.compile(r"https?://.*\.whl")
_COMMENT = re.compile(r"(^|\s)#.*")


def download_wheels(text: str, python: NodePython, folder: Path, *, from_operator: bool) -> list[Path]:
    """Download the wheels of these requirements, and of all that they need beside the image's packages, for a node's
    Python; returns them, in a folder of `folder`. `from_operator`: whether the text is a file that the operator named.
    Otherwise pip gets its plain requirements alone. Exit 1 for a text that is more than these, and if pip fails, with
    pip's last lines."""
    text = _wheels_only(text) if from_operator else _plain(text)
    image = folder / "image"
    image.mkdir()
    empty = {_write_empty(package, python, image) for package in python.packages}
    requirements = folder / "requirements.txt"
    requirements.write_text(text)
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{package}\n" for package in python.constraints))

    wheels = folder / "wheels"
    options = ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "--only-binary=:all:"]
    options += [f"--python-version={python.version}", "--implementation=cp"]
    options += [f"--abi={abi}" for abi in (python.abi, "abi3", "none")]
    options += [f"--platform={tag}" for tag in (*python.tags, f"linux_{python.machine}", "any")]
    options += [f"--find-links={image}", f"--dest={wheels}", f"--constraint={constraints}"]
    _run_pip(["download", *options, f"--requirement={requirements}"], folder)

    downloaded = sorted(path for path in wheels.iterdir() if path.name not in empty)
    if others := [path.name for path in downloaded if path.suffix != ".whl"]:
        why = "nodes that reach no package index get wheels alone"
        raise Exit(f"requirements: {', '.join(others)}: not a wheel; {why}", code=1)
    return downloaded


def _plain(text: str) -> str:
    """Return the plain requirements of a job's record, for pip on this machine. Exit 1 for a text that is more."""
    try:
        return plain_requirements(text)
    except ValueError as error:
        why = "they are the record's, and this machine's pip takes names, versions and markers alone from there"
        raise Exit(f"requirements: {error}; {why}: name the file again with --requirements FILE", code=1) from None


def _wheels_only(text: str) -> str:
    """Return the operator's own requirements. Exit 1 if an option or an address there lets pip build packages."""
    joined = text.replace("\\\n", "")
    builds = [found[0].strip() for found in _BUILDS.finditer(joined)]
    for line in joined.splitlines():
        address = _ADDRESS.search(_COMMENT.sub("", line))
        is_option = line.strip().startswith("-")
        if address and not is_option and not _WHEEL.fullmatch(address[1]):
            builds.append(address[0])
    if builds:
        why = "nodes that reach no package index get wheels alone, and none is built here: leave it out"
        raise Exit(f"requirements: {builds[0]}: {why}", code=1)
    return text


def _run_pip(argv: list[str], folder: Path) -> None:
    """Run this machine's pip. No module is imported from the current folder, PYTHONPATH or the user's packages."""
    isolated = [sys.executable, "-I", "-m", "pip", *argv]
    last: list[str] = []
    with subprocess.Popen(
        isolated,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
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


def _write_empty(package: PythonPackage, python: NodePython, folder: Path) -> str:
    """Write a wheel of this package without content, for the best of the platforms, so that it comes before all others;
    returns its file's name."""
    tag = f"{python.abi}-{python.abi}-{python.tags[0]}"
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {package.version}\n",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: trainyard\nRoot-Is-Purelib: false\nTag: {tag}\n",
        "RECORD": "",
    }
    content = archive({f"{package.stem}.dist-info/{file}": text.encode() for file, text in files.items()})
    name = f"{package.stem}-{tag}.whl"
    (folder / name).write_bytes(content)
    return name
