"""A job that is about to be killed, or whose node is taken, does not wait for its bucket until that happens."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from polling import until

from training import manifest
from training.store import mirror
from training.store.mirror import Mirror
from training.train import StopRequest

pytest.importorskip("s3fs", reason="the buckets' libraries are not installed")


@pytest.fixture
def sent(tmp_path: Path) -> Iterator[tuple[Mirror, list[str]]]:
    """A mirror that has step 2, and whose process hangs with the next one."""
    said: list[str] = []
    (tmp_path / "shelf").mkdir()
    (tmp_path / "run").mkdir()
    mirror.begin(tmp_path / "run")
    one = Mirror(f"file://{tmp_path}/shelf/run", tmp_path / "run", 2, resume=False, say=said.append)
    for step in (2, 4):
        folder = tmp_path / f"run/checkpoints/step-{step:06d}"
        folder.mkdir(parents=True)
        (folder / "model").write_bytes(b"weights")
        listed = {"model": {"bytes": 7, "sha256": hashlib.sha256(b"weights").hexdigest()}}
        manifest.publish(folder / manifest.NAME, manifest.render({"format": 1, "files": listed}))
        one.offer("checkpoints", step, folder)
        if step == 2:
            until(lambda: one._sent == "step-000002", 60, lambda: str(said))
            assert one._process
            os.kill(one._process.pid, signal.SIGSTOP)
    yield one, said
    one.finish(lambda: None, lambda: 0.0)


@pytest.mark.acceptance
def test_an_upload_that_does_not_end_is_left_before_the_end_and_said(sent: tuple[Mirror, list[str]]) -> None:
    one, said = sent
    began = time.monotonic()
    one.finish(lambda: None, lambda: began + 7.0 - time.monotonic())
    assert 1.9 < time.monotonic() - began < 7.0
    where = "checkpoint of step-000004 on the nodes only; the newest that was sent is step-000002"
    assert said == [f"warning: {one.url}: no time is left for the upload: {where}"]


@pytest.mark.acceptance
def test_without_an_end_it_is_waited_for_as_long_as_something_moves(
    sent: tuple[Mirror, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, said = sent
    monkeypatch.setattr(mirror, "STALL_TIMEOUT", 1.0)
    one.finish(lambda: None, lambda: math.inf)
    assert "the upload is stuck: checkpoint of step-000004" in said[0]


def test_what_is_left_is_read_from_the_keepers_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert StopRequest().left() == math.inf, "not under a keeper"
    record = tmp_path / "stop-by.json"
    monkeypatch.setenv("TRAINYARD_STOP_BY", str(record))
    stop = StopRequest()
    assert stop.left() == math.inf, "the signal is somebody else's"
    record.write_text(json.dumps({"by": time.time() + 30}))
    assert 25 < stop.left() <= 30
