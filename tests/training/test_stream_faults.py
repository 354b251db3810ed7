"""A stream from a hub on loopback that stalls, lies, dies and comes back, read by the real libraries for real ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import NamedTuple

import hub_server
import pytest

pytest.importorskip("torch")
pytest.importorskip("datasets")

from gloo_ranks import TINY, losses, start
from hub_server import Hub
from polling import until

pytestmark = pytest.mark.faults
pytest_plugins = ["stream_fixtures"]

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "hf:allenai/c4:en"
FIRST = "en/c4-train.00000-of-00003.json.gz"


class Published(NamedTuple):
    """A data set of the hub that a job streams."""

    hub: Hub
    job: Path
    environment: dict[str, str]


def prepared(set_: Path, environment: dict[str, str]) -> None:
    """As `fab prepare` does on the head."""
    words = ["training.data.stream.stage", "--quiet", "--out", str(set_), "--train-vocab", "320", SOURCE]
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def published(c4: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    folder = tmp_path_factory.mktemp("hub")
    with hub_server.serving(c4) as hub:
        environment = {**hub.environment, "HF_HOME": str(folder / "home")}
        prepared(folder / "set", environment)
        keys = f'[data]\nstream = true\nsource = "{SOURCE}"\nshuffle = 16\n'
        (folder / "job.toml").write_text(TINY.format(data=folder / "set").replace("[data]\n", keys))
        yield Published(hub, folder / "job.toml", environment)


@pytest.fixture(autouse=True)
def behaves_again(published: Published) -> Iterator[None]:
    yield
    published.hub.mischief = lambda *_: False
    published.hub.reads.clear()


def hang(hub: Hub) -> bool:
    hub.closing.wait(60)
    return True


def short(handler: BaseHTTPRequestHandler, says: int, sends: bytes) -> bool:
    handler.send_response(206)
    handler.send_header("Content-Length", str(says))
    handler.end_headers()
    handler.wfile.write(sends)
    handler.close_connection = True
    return True


def refuse(handler: BaseHTTPRequestHandler, status: int) -> bool:
    handler.send_response(status)
    handler.send_header("Content-Length", "0")
    handler.end_headers()
    return True


def test_what_stalls_or_lies_once_is_read_again_and_nothing_else_changes(
    published: Published, streamed: Path, c4: Path, tmp_path: Path
) -> None:
    """No answer, a body that is cut, a body that is shorter and says so, a busy server: each once."""
    hub, planted = published.hub, ["hang", "cut", "less", "busy"]

    def misbehave(handler: BaseHTTPRequestHandler, name: str, first: int) -> bool:
        kind = planted.pop(0) if planted else ""
        size = (c4 / name).stat().st_size
        return {
            "hang": lambda: hang(hub),
            "cut": lambda: short(handler, size, b"x" * 100),
            "less": lambda: short(handler, 100, b"x" * 100),
            "busy": lambda: refuse(handler, 503),
        }.get(kind, lambda: False)()

    hub.mischief = misbehave
    group = start(published.job, tmp_path / "hub", 2, ["data.timeout=60"], environment=published.environment)
    group.done()
    assert planted == [] and "nothing for 60" not in group.output()
    local = [f"data.path={streamed}", f"data.source={c4}"]
    start(published.job, tmp_path / "local", 2, local).done()
    assert losses(tmp_path / "hub") == losses(tmp_path / "local")


def test_a_source_that_gives_nothing_any_more_is_a_warning_and_then_named(published: Published, tmp_path: Path) -> None:
    hub = published.hub
    hub.mischief = lambda *_: len(hub.reads) > 2 and hang(hub)
    began = time.monotonic()
    # Longer than the ranks wait for each other: all wait for the text, and none for another rank.
    keys = ["data.timeout=14", "train.timeout=10", "train.steps=1000"]
    group = start(published.job, tmp_path / "run", 2, keys, environment=published.environment)
    assert group.wait(120) == [1, 1]
    text = re.sub(r"nothing for 1[4567] s", "nothing for 14 s", group.output(0))
    warning, error = text.index(f"warning: data.source = {SOURCE}: nothing for "), text.index("error: data.source = ")
    assert warning < error
    assert f"error: data.source = {SOURCE}: nothing for 14 s: datasets/allenai/c4@{hub_server.REVISION}/en/c4-" in text
    assert f"error: data.source = {SOURCE}: nothing for " in group.output(1)
    assert "from byte 0, attempt 1: no answer" in text and "Traceback" not in group.output()
    assert time.monotonic() - began < 100


def test_a_server_that_dies_and_comes_back_is_waited_for(published: Published, c4: Path, tmp_path: Path) -> None:
    with hub_server.serving(c4) as hub:
        environment = {**published.environment, **hub.environment}
        port = int(hub.url.rpartition(":")[2])
        # Steps that use up what has been read ahead at once: with small ones a slow machine trains on it for minutes.
        keys = ["data.timeout=20", "train.steps=2000", "checkpoint.every=2000", "train.eval_every=0"]
        keys += ["train.global_batch_tokens=7168", "train.micro_batch=64"]
        group = start(published.job, tmp_path / "run", 1, keys, environment=environment)
        until(lambda: "step 2/" in group.output(0), 240)
    warning = f"warning: data.source = {SOURCE}: nothing for "
    until(lambda: warning in group.output(0), 120, lambda: f"{warning}\n{group.output()}")
    assert "step 1999/" not in group.output(0)
    with hub_server.serving(c4, port=port):
        until(lambda: f"{SOURCE}: goes on after " in group.output(0), 120)
        assert group.alive()
        group.kill()


@pytest.mark.parametrize("status", [403, 404])
def test_a_refusal_is_not_asked_for_again(published: Published, tmp_path: Path, status: int) -> None:
    published.hub.mischief = lambda handler, *_: refuse(handler, status)
    group = start(published.job, tmp_path / "run", 1, environment=published.environment)
    assert group.wait(60) == [1]
    assert f"error: data.source = {SOURCE}: datasets/allenai/c4@" in group.output()
    assert str(status) in group.output() and "Traceback" not in group.output()
    assert len({name for name, _ in published.hub.reads}) == len(published.hub.reads) <= 2
