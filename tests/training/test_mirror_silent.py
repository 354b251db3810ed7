"""A run that begins again while its bucket does not answer: a line that says what it waits for, and an end of that."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from training.store import mirror

pytest.importorskip("s3fs", reason="the buckets' libraries are not installed")


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a run in a bucket whose server takes connections and says nothing, as behind a firewall."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    monkeypatch.setattr(mirror, "SAY", 0.2)
    monkeypatch.setattr(mirror, "ANSWER", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # open until the test ends: a closed one refuses
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{listener.getsockname()[1]}")
        yield "s3://shelf/run"


@pytest.mark.parametrize(("newest", "seconds"), [(8, 1), (-1, 2)])
def test_a_bucket_that_says_nothing_is_waited_for_aloud_and_not_for_long(
    newest: int, seconds: int, silent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began, fetched = time.monotonic(), list[str]()
    assert mirror.fetch(silent, tmp_path, newest, fetched) == f"{silent}: no answer in {seconds} s"
    assert time.monotonic() - began < seconds + 5 and fetched == []
    what = f"waiting for {silent} to say which checkpoints it has, for {seconds} s at most"
    rest = "; without an answer it goes on from step 8" if newest == 8 else ""
    assert capsys.readouterr().out.splitlines() == [what + rest]


def test_a_bucket_that_answers_is_not_mentioned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bucket/runs").mkdir(parents=True)
    url = f"file://{tmp_path}/bucket/runs/demo-1"
    assert mirror.fetch(url, tmp_path / "run", -1, []) == ""
    assert capsys.readouterr().out == f"no checkpoint of the run in {url}\n"
