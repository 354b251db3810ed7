"""`fab images` and `fab prune` on a cache that is not as we left it: a line that names the file, no traceback."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import module_here
import pytest
from fab_command import fab

from fabfile.stacks import pulumi_cli
from infra.clouds.local import ids

WHOLE = {"profile": "native", "collectives": "gloo", "base": "b", "ids": ids.RANGE}
NOTHING = "nothing to remove: every image is in use\n"


class Cache:
    """The cache of golden images, and the two verbs on it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def fab(self, *words: str) -> tuple[int, str, str]:
        """Run a verb; returns its exit code, and what it printed to stdout and to stderr."""
        code = fab(*words)
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err

    def bake(self, name: str, record: str) -> Path:
        """An image with this record; returns its folder."""
        folder = self.folder / "images" / name
        folder.mkdir(parents=True)
        (folder / "image.json").write_text(record)
        return folder


@pytest.fixture
def cache(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cache:
    monkeypatch.setenv("TRAINYARD_HOME", str(home / "yard"))
    monkeypatch.setattr(pulumi_cli, "ask", module_here.ask)
    return Cache(home / "yard", capsys)


def test_an_empty_and_a_whole_cache(cache: Cache) -> None:
    assert cache.fab("images")[1].splitlines()[0].startswith("IMAGE")
    assert cache.fab("prune", "--yes")[1] == NOTHING
    folder = cache.bake("a1", json.dumps(WHOLE))
    assert "native" in cache.fab("images")[1]
    code, out, err = cache.fab("prune", "--yes")
    assert code == 0 and out.startswith("prune removes:\n    image a1 (") and "removed image a1" in out, err
    assert not folder.exists()


def test_a_layer_names_the_image_under_it(cache: Cache) -> None:
    cache.bake("a1", json.dumps(WHOLE))
    cache.bake("b2", json.dumps({**WHOLE, "parent": "a1"}))
    assert "b2     slurm over a1" in cache.fab("images")[1]


@pytest.mark.parametrize("verb", ["images", "prune"])
@pytest.mark.parametrize("record", ["", "{", "[1]", "null", "{}"])
def test_a_damaged_record_of_an_image(verb: str, record: str, cache: Cache) -> None:
    folder = cache.bake("a1", record)
    code, _, err = cache.fab(verb)
    assert (code, len(err.splitlines())) == (1, 1), err
    assert err.startswith(f"{folder}/image.json: damaged") and "remove its folder" in err


@pytest.mark.parametrize("verb", ["images", "prune"])
@pytest.mark.parametrize("spec", ["", "{}", "3"])
def test_a_damaged_record_of_a_node_keeps_every_image(verb: str, spec: str, cache: Cache) -> None:
    folder = cache.bake("a1", json.dumps(WHOLE))
    node = cache.folder / "stacks" / "lab" / "nodes" / "node1"
    node.mkdir(parents=True)
    (node / "spec.json").write_text(spec)
    code, _, err = cache.fab(verb)
    assert (code, len(err.splitlines())) == (1, 1), err
    assert str(node) in err and err.strip().endswith("run: fab recover --stack lab")
    assert folder.exists()


def test_a_prune_asks_and_removes_nothing_before(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal, too, the list comes first; nothing to remove needs no answer."""
    folder = cache.bake("a1", json.dumps(WHOLE))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    code, out, err = cache.fab("prune")
    assert code == 2 and "add --yes" in err and folder.exists()
    assert out.startswith("prune removes:\n    image a1 (")
    shutil.rmtree(folder)
    assert cache.fab("prune")[:2] == (0, NOTHING)
