"""Makes an environment with a program's extra Python packages, over that of the node's image.

    envs/HASH            a link to the environment, there once it is complete
    envs/HASH-RANDOM/    the environment: its scripts name its path, so it is never moved

The environment sees the image's packages. Their versions are kept, unless the user asks for another version: a package
that the image has is then in both, and the environment's own is found first. One that another user may have changed is
made anew (node/held_environment.py).
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fabfile.launchers import VENV
from node import folders, held_files
from node.held_environment import is_anothers, is_complete

PREFIX = os.environ.get("TRAINYARD_PREFIX", "")  # for tests: what takes the place of /
DEFAULT = Path.home() / ".cache" / "trainyard" / "envs"
IMAGE = Path(f"{PREFIX}/opt/trainyard/image.json")
OLD = 90 * 86400.0
"""Seconds since a job was last started in it after which an environment may be removed."""
_ABANDONED = 6 * 3600.0  # seconds after which an environment that was not completed is removed
_WORDS = 12  # last lines of pip that say why it failed
_RETRIES = "WARNING: Retrying"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WHEEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl")
_PIECE = 1 << 20


_running: list[subprocess.Popen[str]] = []  # the step that runs now, in a process group of its own


class RequirementsError(Exception):
    """The environment cannot be made: which step failed, and its last lines; without the node's name."""

    is_cut_off = False
    """Whether pip has reached no index of packages."""


def main(_argv: list[str]) -> int:
    """Make what stdin asks for, as JSON: {"text": requirements, "folder": of the environments, or empty}. With
    "wheels", pairs of file names and sizes in bytes, their content follows, and pip takes no others. Prints pip's lines
    on stderr as they come, and as the last line of stdout {"bin": folder} or {"problem": why}, with what wheels have to
    fit as "fits" if pip has reached no index. The end of stdin, with which the connection has gone, ends it."""
    asked: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    folder = Path(asked["folder"]) if asked["folder"] else DEFAULT
    answer: dict[str, Any]
    try:
        with _received(sys.stdin.buffer, folder, asked.get("wheels")) as wheels:
            threading.Thread(target=_end_with_stdin, daemon=True).start()
            made = ensure(asked["text"], folder, lambda line: print(line, file=sys.stderr, flush=True), wheels=wheels)
        answer = {"bin": str(made)}
    except RequirementsError as error:
        answer = {"problem": str(error)}
        if error.is_cut_off:
            answer["fits"] = fits(asked["text"])
    print(json.dumps(answer), flush=True)
    return 1 if "problem" in answer else 0


@contextmanager
def _received(stdin: IO[bytes], folder: Path, wheels: list[tuple[str, int]] | None) -> Iterator[Path | None]:
    """A folder with these wheels, which are read from stdin, while they are needed; None without any."""
    if wheels is None:
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    with folders.temporary("wheels-", folder) as wheels_folder:
        for file, size in wheels:
            if not _WHEEL.fullmatch(file):
                raise RequirementsError(f"requirements: {file!r} is no wheel's name")
            left = size
            with (wheels_folder / file).open("wb") as out:
                while left and (piece := stdin.read(min(left, _PIECE))):
                    left -= out.write(piece)
            if left:
                raise RequirementsError(f"requirements: {file} was cut off {left} bytes before its end")
        yield wheels_folder


def fits(text: str, image: Path = Path(f"{PREFIX}{VENV}").parent) -> dict[str, Any]:
    """What wheels for this node have to fit: its Python, machine and C library, what the image has (`name==version`
    each), and what the requirements may not change of that."""
    (packages,) = image.glob("lib/python*/site-packages")
    return {
        "python": packages.parent.name.removeprefix("python"),
        "machine": platform.machine(),
        "glibc": platform.libc_ver()[1],
        "has": constraints("", packages),
        "constraints": constraints(text, packages),
    }


def _end_with_stdin() -> None:
    while os.read(0, 1 << 12):  # not sys.stdin: Python could not end while a thread reads that
        pass
    for step in _running:
        with suppress(ProcessLookupError):
            os.killpg(step.pid, signal.SIGTERM)


def ensure(
    text: str,
    folder: Path = DEFAULT,
    on_line: Callable[[str], None] = lambda _line: None,
    image: Path = Path(f"{PREFIX}{VENV}").parent,
    record: Path = IMAGE,
    wheels: Path | None = None,
) -> Path:
    """The folder with `python` and the scripts of the environment for these requirements, made if it is not there.
    `on_line` gets pip's lines; `image` is the environment underneath, `record` says what the image is made of;
    `wheels` is a folder with all wheels that it is made of, and no others are looked for. RequirementsError."""
    name = name_of(text, record)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        owner = held_files.owner_in(folder)
        if is_anothers(folder / name, owner) or is_anothers(folder / f"{name}.lock", owner):
            name = f"{name}.{owner}"
        link = folder / name
        with _locked(folder / f"{name}.lock"):
            if not is_complete(link, text, image, owner):
                _remove_abandoned(folder, name)
                _make(text, link, on_line, image, wheels)
            os.utime(link / "made.json")
        _forget_old(folder, name)
    except OSError as error:
        raise RequirementsError(f"requirements: {error.filename or folder}: {error.strerror or error}") from None
    return link / "bin"


def name_of(text: str, record: Path = IMAGE) -> str:
    """The environment's name: it changes with the requirements and with the image."""
    made_of = record.read_bytes() if record.is_file() else b""
    return hashlib.sha256(text.encode() + b"\0" + made_of).hexdigest()[:16]


def _make(text: str, link: Path, on_line: Callable[[str], None], image: Path, wheels: Path | None) -> None:
    on_line("Making an environment with these packages, which jobs after this one will find")
    new = Path(tempfile.mkdtemp(dir=link.parent, prefix=f"{link.name}-"))
    done = False
    try:
        new.chmod(held_files.FOLDER_MODE)
        _run("venv", [str(image / "bin/python"), "-m", "venv", "--without-pip", str(new)], on_line)
        (own,) = new.glob("lib/python*/site-packages")
        under = image / own.relative_to(new)
        # addsitedir, not a bare path: it also reads the .pth files of the image's packages.
        (own / "_image.pth").write_text(f"import site; site.addsitedir({str(under)!r})\n")
        (new / "requirements.txt").write_text(text)
        (new / "constraints.txt").write_text("".join(f"{line}\n" for line in constraints(text, under)))
        options = ["--no-input", "--disable-pip-version-check", "--progress-bar=off"]
        wanted = ["--requirement", str(new / "requirements.txt")]
        if wheels is not None:
            wanted = ["--no-index", f"--find-links={wheels}", *sorted(map(str, wheels.iterdir()))]
        if wheels is None or any(wheels.iterdir()):  # none, if the image has all of it
            files = ["--constraint", str(new / "constraints.txt"), *wanted]
            _run("pip", [str(new / "bin/python"), "-m", "pip", "install", *options, *files], on_line)
        _copy_scripts(image / "bin", new / "bin")
        # Whatever the umask is: `is_complete` takes nothing that others may write to.
        (new / "bin").chmod(held_files.FOLDER_MODE)
        (new / "made.json").write_text(json.dumps({"requirements": text, "image": str(image)}))
        (new / "made.json").chmod(held_files.FILE_MODE)
        temporary = link.with_name(f"{new.name}.link")
        temporary.symlink_to(new.name)
        if link.is_dir() and not link.is_symlink():  # no link of ours, and a job may have it open
            link.rename(link.with_name(f"{new.name}.old"))
        temporary.replace(link)
        done = True
    finally:
        if not done:
            with suppress(OSError):  # the error that has ended it counts
                folders.remove(new)


def _run(step: str, argv: list[str], on_line: Callable[[str], None]) -> None:
    """Run a step to its end. RequirementsError with its last lines."""
    # A user's site packages and PYTHONPATH would count as installed, and are not in the job's environment.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PYTHONNOUSERSITE"] = "1"
    last: list[str] = []
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(
        argv, env=environment, text=True, errors="replace", start_new_session=True, **pipes
    ) as process:
        _running[:] = [process]
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip():
                last = last_lines(last, line)
                on_line(line.rstrip())
    if process.returncode != 0:
        why = "\n  ".join(last or [f"exit code {process.returncode}"])
        error = RequirementsError(f"requirements: {step} failed:\n  {why}")
        error.is_cut_off = any(line.startswith(_RETRIES) for line in last)
        raise error


def last_lines(last: list[str], line: str) -> list[str]:
    """The last lines of pip, to say why it failed, with one more; of those that say that it tries again only one."""
    if last and last[-1].startswith(_RETRIES) and line.strip().startswith(_RETRIES):
        last = last[:-1]
    return [*last[1 - _WORDS :], line.strip()]


def constraints(text: str, packages: Path) -> list[str]:
    """`name==version` of the packages in a folder, but of those for which the requirements name a version."""
    chosen = {name for name, more in map(_requirement, text.splitlines()) if more}
    found = {}
    for each in importlib.metadata.distributions(path=[str(packages)]):
        name = each.metadata["Name"]
        if name and _plain(name) not in chosen:
            found[_plain(name)] = f"{name}=={each.version}"
    return [found[name] for name in sorted(found)]


def _requirement(line: str) -> tuple[str, bool]:
    """The package that a line asks for, and whether for a version, or from an address, of its own."""
    line = re.sub(r"(^|\s)#.*", "", line).strip()
    found = _NAME.match(line)
    if found is None:
        return "", False
    rest = re.sub(r"^\s*\[[^\]]*\]", "", line[found.end() :]).partition(";")[0].strip()
    return _plain(found[0]), bool(rest) and not rest.startswith("--")


def _plain(name: str) -> str:
    """A package's name as pip compares them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _copy_scripts(image: Path, own: Path) -> None:
    """Give the environment the image's scripts (torchrun, accelerate), to be run by its own Python: by the image's they
    would not see its packages."""
    for script in sorted(image.iterdir()):
        if (own / script.name).exists() or not script.is_file():
            continue
        with script.open("rb") as file:
            first, rest = file.readline(), file.read() if script.stat().st_size < 1 << 20 else b""
        if first.startswith(b"#!%s/" % os.fsencode(image)) and b"python" in first:
            (own / script.name).write_bytes(b"#!%s/python\n%s" % (os.fsencode(own), rest))
            (own / script.name).chmod(0o755)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time make an environment. On a shared folder without locks two may make it; both are whole,
    and the last one's link stays."""
    with path.open("w") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_abandoned(folder: Path, name: str) -> None:
    """Remove what a killed process left of this environment."""
    for path in folder.glob(f"{name}-*"):
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > _ABANDONED and not _is_in_use(path):
                folders.remove(path)


def _forget_old(folder: Path, current: str) -> None:
    """Remove the environments that were not used for a long time, with what is left of others."""
    for path in sorted(folder.iterdir(), key=lambda one: not one.is_symlink()):  # a link before what it leads to
        with suppress(OSError):
            mark = path / "made.json" if (path / "made.json").exists() else path
            if path.name == current or time.time() - mark.stat().st_mtime < OLD or _is_in_use(path):
                continue
            folders.remove(path)


def _is_in_use(environment: Path) -> bool:
    """Whether a process of this node has the environment's folder on its PATH, under either of its names."""
    names = {os.fsencode(path / "bin") for path in (environment, environment.resolve())}
    names |= {os.fsencode(link / "bin") for link in environment.parent.glob(f"{environment.name[:16]}*")}
    for process in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or is another user's
            if any(name in process.read_bytes() for name in names):
                return True
    return False
