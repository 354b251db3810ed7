"""`fab images` and `fab prune` on a cache that is not as we left it: a line that names the file, no traceback."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infra.clouds.local import ids

ROOT = Path(__file__).resolve().parents[2]
WHOLE = {"profile": "native", "collectives": "gloo", "base": "b", "ids": ids.RANGE}


def images(home: Path, verb: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "TRAINYARD_HOME": str(home / "yard")}
    argv = [sys.executable, "-m", "fabfile", verb, *(["--yes"] if verb == "prune" else [])]
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)


def bake(home: Path, name: str, record: str) -> Path:
    folder = home / "yard" / "images" / name
    folder.mkdir(parents=True)
    (folder / "image.json").write_text(record)
    return folder


def test_an_empty_and_a_whole_cache(tmp_path: Path) -> None:
    assert images(tmp_path, "images").stdout.splitlines()[0].startswith("IMAGE")
    assert images(tmp_path, "prune").stdout == "nothing to remove: every image is in use\n"
    folder = bake(tmp_path, "a1", json.dumps(WHOLE))
    assert "native" in images(tmp_path, "images").stdout
    done = images(tmp_path, "prune")
    assert (
        done.returncode == 0
        and done.stdout.startswith("prune removes:\n    image a1 (")
        and "removed image a1" in done.stdout
    ), done.stderr
    assert not folder.exists()


def test_a_layer_names_the_image_under_it(tmp_path: Path) -> None:
    bake(tmp_path, "a1", json.dumps(WHOLE))
    bake(tmp_path, "b2", json.dumps({**WHOLE, "parent": "a1"}))
    assert "b2     slurm over a1" in images(tmp_path, "images").stdout


@pytest.mark.parametrize("verb", ["images", "prune"])
@pytest.mark.parametrize("record", ["", "{", "[1]", "null", "{}"])
def test_a_damaged_record_of_an_image(verb: str, record: str, tmp_path: Path) -> None:
    folder = bake(tmp_path, "a1", record)
    done = images(tmp_path, verb)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert done.stderr.startswith(f"{folder}/image.json: damaged") and "remove its folder" in done.stderr


@pytest.mark.parametrize("verb", ["images", "prune"])
@pytest.mark.parametrize("spec", ["", "{}", "3"])
def test_a_damaged_record_of_a_node_keeps_every_image(verb: str, spec: str, tmp_path: Path) -> None:
    folder = bake(tmp_path, "a1", json.dumps(WHOLE))
    node = tmp_path / "yard" / "stacks" / "lab" / "nodes" / "node1"
    node.mkdir(parents=True)
    (node / "spec.json").write_text(spec)
    done = images(tmp_path, verb)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert str(node) in done.stderr and done.stderr.strip().endswith("run: fab recover --stack lab")
    assert folder.exists()


def test_a_prune_asks_and_removes_nothing_before(tmp_path: Path) -> None:
    """Without a terminal, too, the list comes first; nothing to remove needs no answer."""
    folder = bake(tmp_path, "a1", json.dumps(WHOLE))
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TRAINYARD_HOME": str(tmp_path / "yard")}
    argv = [sys.executable, "-m", "fabfile", "prune"]
    done = subprocess.run(
        argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2 and "add --yes" in done.stderr and folder.exists()
    assert done.stdout.startswith("prune removes:\n    image a1 (")
    shutil.rmtree(folder)
    done = subprocess.run(
        argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "nothing to remove: every image is in use\n")
