"""Verbs of the local stacks as a user who is not root, on a machine where root has nodes: one clear line."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv on this machine"),
]


@pytest.fixture
def user(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of another user: a home that is his, and the local stacks' folder, which is root's."""
    for folder in tmp_path.parents:  # pytest's own are closed, and this user passes through them
        if folder.stat().st_uid == 0 and str(folder) != "/" and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    tmp_path.chmod(0o755)
    home, yard = tmp_path / "home", tmp_path / "yard"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    (yard / "images").mkdir(parents=True)
    yard.chmod(0o700)
    places = {"HOME": home, "PULUMI_HOME": home, "TRAINYARD_HOME": yard}
    yield {
        **{
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "PULUMI_BACKEND_URL": f"file://{home}",
        },
        **{name: str(path) for name, path in places.items()},
        **{"PULUMI_SKIP_UPDATE_CHECK": "true", "PYTHONDONTWRITEBYTECODE": "1"},
    }


def fab(user: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    other = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    if subprocess.run([*other, sys.executable, "-c", "import fabfile.verbs"], cwd=ROOT, env=user).returncode != 0:
        pytest.skip(f"{pwd.getpwuid(NOBODY).pw_name} cannot read this checkout or its Python")
    argv = [*other, sys.executable, "-m", "fabfile", *words]
    return subprocess.run(argv, cwd=ROOT, env=user, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("verb", ["images", "prune"])
def test_the_cache_is_roots(verb: str, user: dict[str, str]) -> None:
    done = fab(user, verb)
    assert (done.returncode, done.stdout) == (2, ""), done
    why = "is root's, as are the machines made from it: run this with sudo"
    assert done.stderr.splitlines() == [f"{user['TRAINYARD_HOME']} {why}"]


@pytest.mark.parametrize("words", [("audit",), ("destroy", "--yes"), ("recover", "--yes")])
def test_the_machines_are_roots(words: tuple[str, ...], user: dict[str, str]) -> None:
    """Nothing of them is looked at, and nothing made."""
    done = fab(user, *words)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.splitlines() == ["the machines of a local stack belong to root: run this with sudo"]
    assert sorted(path.name for path in Path(user["TRAINYARD_HOME"]).iterdir()) == ["images"]


@pytest.mark.parametrize("verb", ["status", "refresh", "wait", "jobs"])
def test_a_cluster_of_root_is_not_up_for_others(verb: str, user: dict[str, str]) -> None:
    """State is per user: what root has made is asked for by root."""
    done = fab(user, verb)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.splitlines() == ["stack local is not up; run: fab up --stack local"]
