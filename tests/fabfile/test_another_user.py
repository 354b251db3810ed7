"""Verbs of the local stacks as a user who is not root, on a machine where root has nodes: one clear line."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import other_user
import pytest

pytestmark = [
    pytest.mark.acceptance,  # each test starts the command anew
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv on this machine"),
]


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """A Python that the other user can start."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield other_user.python(Path(folder))


@pytest.fixture
def user(python: Path) -> Iterator[dict[str, str]]:
    """The environment of another user: a home of its own, and the local stacks' folder, which is root's.
    Not in pytest's own folder, which each start of pytest closes for others."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        home = Path(folder, "home")
        home.mkdir()
        os.chown(home, other_user.NOBODY, other_user.NOBODY)
        yard = Path(folder, "yard")
        (yard / "images").mkdir(parents=True)
        yard.chmod(0o700)
        yield {
            "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(home),
            "PULUMI_HOME": str(home),
            "PULUMI_BACKEND_URL": f"file://{home}",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "TRAINYARD_HOME": str(yard),
            "PYTHONDONTWRITEBYTECODE": "1",
        }


def fab(user: dict[str, str], python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [*other_user.AS_NOBODY, str(python), "-m", "fabfile", *words]
    return subprocess.run(argv, cwd=other_user.ROOT, env=user, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("verb", ["images", "prune"])
def test_the_cache_is_roots(verb: str, user: dict[str, str], python: Path) -> None:
    done = fab(user, python, verb)
    assert (done.returncode, done.stdout) == (2, ""), done
    why = "is root's, as are the machines made from it: run this with sudo"
    assert done.stderr.splitlines() == [f"{user['TRAINYARD_HOME']} {why}"]


@pytest.mark.parametrize("words", [("audit",), ("destroy", "--yes"), ("recover", "--yes")])
def test_the_machines_are_roots(words: tuple[str, ...], user: dict[str, str], python: Path) -> None:
    """Nothing of them is looked at, and nothing made."""
    done = fab(user, python, *words)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.splitlines() == ["the machines of a local stack belong to root: run this with sudo"]
    assert sorted(path.name for path in Path(user["TRAINYARD_HOME"]).iterdir()) == ["images"]


@pytest.mark.parametrize("verb", ["status", "refresh", "wait", "jobs"])
def test_a_cluster_of_root_is_not_up_for_others(verb: str, user: dict[str, str], python: Path) -> None:
    """State is per user: what root has made is asked for by root."""
    done = fab(user, python, verb)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.splitlines() == ["stack local is not up; run: fab up --stack local"]
