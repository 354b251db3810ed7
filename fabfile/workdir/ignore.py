"""Which files of a folder go along: those that git has, or would add. `.git` never goes along.

Git itself says which, outside of a work tree too. A `.trainyardignore` at the folder's top, in the form of .gitignore,
leaves out more: also files that git has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from invoke.exceptions import Exit
from pathspec import GitIgnoreSpec

OWN = ".trainyardignore"
_TIMEOUT = 120


def chosen(folder: Path) -> list[str]:
    """The paths below a folder that go along, with `/`, sorted; files, links, and whatever else is no folder. Exit 2 if
    git fails, or a file with rules cannot be read."""
    own, real = _rules(folder / OWN), folder.resolve()  # a link may lead into a work tree
    if shutil.which("git") is None:
        raise Exit("there is no git on this machine, which says what .gitignore leaves out: install it", code=2)
    if any((parent / ".git").exists() for parent in (real, *real.parents)):
        found = set(_by_git(folder, {}))
    else:
        with TemporaryDirectory(prefix="trainyard-") as place:  # for an empty repository, around the folder's files
            _git(folder, {}, "init", "--quiet", "--bare", "--template=", place)
            found = set(_by_git(folder, {"GIT_DIR": place, "GIT_WORK_TREE": str(real)}))
    return sorted(name for name in found if not own.match_file(name))


def _by_git(folder: Path, repository: Mapping[str, str]) -> Iterator[str]:
    """What git has, and would add. Repositories inside are asked, too: submodules, and those that git does not know."""
    listed = _git(folder, repository, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    for name in map(os.fsdecode, listed.split(b"\0")[:-1]):
        path = folder / name
        if path.is_symlink() or not path.is_dir():
            yield name
        elif (path / ".git").exists():
            yield from (f"{name.rstrip('/')}/{inner}" for inner in _by_git(path, {}))


def _git(folder: Path, repository: Mapping[str, str], *words: str) -> bytes:
    """What git prints. The caller's variables of git's do not count: in a hook they name another repository.

    Nor does a program that a repository's own settings name (core.fsmonitor): a fetched folder may have a `.git` that a
    job has written.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", *words],
            cwd=folder,
            env={**environment, **repository},
            capture_output=True,
            check=False,
            timeout=_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise Exit(f"{folder}: git {words[0]} takes longer than {_TIMEOUT} s", code=2) from None
    if done.returncode != 0:
        why = (done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}").splitlines()[0]
        raise Exit(f"{folder}: git cannot say which files belong to it: {why}", code=2)
    return done.stdout


def _rules(path: Path) -> GitIgnoreSpec:
    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines() if path.is_file() else []
        return GitIgnoreSpec.from_lines(lines)
    except (OSError, ValueError) as error:
        raise Exit(f"{path}: {getattr(error, 'strerror', None) or error}", code=2) from None
