"""Where a streamed text may be: a folder, a bucket; what is refused, each in one line."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path

import c4_form
import llama_tokenizer
import numpy as np
import pytest
from stream_reading import documents, packed, staged

from training import manifest
from training.data import token_set
from training.data.stream import stage
from training.data.stream.documents import Place
from training.data.stream.packed import Position
from training.data.stream.source import split

pytest_plugins = ["stream_fixtures", "training_fixtures"]


def rows(folder: Path) -> list[tuple[str, ...]]:
    groups = documents(folder).groups(Place())
    found = (row for group in groups for row in group.rows)
    return [tuple(part.text.decode() for part in row.documents) for row in islice(found, 180)]


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The line of a source that cannot be prepared."""
    assert stage.main(["--quiet", *map(str, words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_bucket_has_the_same_order_as_a_folder(
    c4: Path, streamed: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("s3fs", reason="the buckets' libraries are not installed")
    from training.store import bucket

    server = request.getfixturevalue("s3")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    place = bucket.open_folder(f"{server.url}/c4/en")
    for path in (c4 / "en").iterdir():
        place.write(path.name, path.read_bytes())
    from_bucket = staged(tmp_path / "set", f"{server.url}/c4", "--ranks", streamed / "vocab.tiktoken")
    assert rows(from_bucket) == rows(streamed)
    manifests = [token_set.open(folder).manifest for folder in (from_bucket, streamed)]
    assert manifests[0]["stream"]["sha256"] == manifests[1]["stream"]["sha256"], "the same text, elsewhere"
    assert manifests[0]["splits"] == manifests[1]["splits"]


def test_a_vocabulary_of_llama_s_kind_goes_on_from_every_position(c4: Path, tmp_path: Path) -> None:
    set_ = staged(tmp_path / "set", c4, "--ranks", llama_tokenizer.write(tmp_path / "tokenizer.json"))
    steps = list(islice(packed(set_).steps(3, 16, Position()), 60))
    for at in (0, 7, 30):
        (again,) = islice(packed(set_).steps(3, 16, steps[at].after), 1)
        assert np.array_equal(again.windows, steps[at + 1].windows)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("en/c4-train.00000-of-01024.json.gz", "train"),
        ("en/c4-validation.00000-of-00008.json.gz", "val"),
        ("validation/part-1.parquet", "val"),
        ("val.jsonl", "val"),
        ("my-test.jsonl", "test"),
        ("medieval.jsonl", "train"),
        ("latest.jsonl", "train"),
        ("interval/a.jsonl", "train"),
    ],
)
def test_which_split_a_file_is_of(name: str, expected: str) -> None:
    assert split(name) == expected


def test_what_is_no_source_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ("--out", tmp_path / "set", "--train-vocab", 320)
    (tmp_path / "empty").mkdir()
    assert f"{tmp_path}/nowhere: no such folder" in refused(capsys, *out, tmp_path / "nowhere")
    assert "no .json, .jsonl" in refused(capsys, *out, tmp_path / "empty")
    assert "not of several" in refused(capsys, *out, tmp_path, tmp_path)
    assert "allowed: s3://, abfs:// or file://" in refused(capsys, *out, "ftp://there/c4")
    (tmp_path / "empty" / "val.jsonl").write_bytes(c4_form.lines(["a"]))
    assert "no file to train on" in refused(capsys, *out, tmp_path / "empty")
    assert not (tmp_path / "set" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', "a.jsonl:2: not a line of JSON"),
        ("a.jsonl", b'{"content": "a"}\n', 'a.jsonl:1: no text under "text"'),
        ("a.jsonl", b'{"text": "\xff"}\n', "a.jsonl:1: not UTF-8"),
        ("a.json.gz", b"plain", "a.json.gz: not a gzip file, or a damaged one"),
        ("a.json.gz", gzip.compress(b'{"text": "a"}\n' * 99, mtime=0)[:-12], "a.json.gz: a gzip file without its end"),
        ("a.parquet", b"plain text", "a.parquet: not a complete parquet file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, expected: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / name).write_bytes(content)
    (source / "validation.jsonl").write_bytes(c4_form.lines(["a", "b"]))
    assert expected in refused(capsys, "--out", tmp_path / "set", "--train-vocab", 320, source)


def test_the_set_that_is_there_is_kept_unless_it_is_to_be_replaced(
    c4: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_ = staged(tmp_path / "set", c4)
    before = (set_ / "manifest.json").stat().st_mtime_ns
    staged(set_, c4)
    assert (set_ / "manifest.json").stat().st_mtime_ns == before
    assert "--overwrite replaces it" in refused(capsys, "--out", set_, "--train-vocab", 330, c4)
    assert stage.main(["--quiet", "--overwrite", "--out", str(set_), "--train-vocab", "330", str(c4)]) == 0
    assert json.loads((set_ / "manifest.json").read_text())["vocab_size"] == 330
    token_set.open(set_, verify=True)


def test_a_set_of_somebody_else_s_is_not_written_over(
    c4: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.bin").write_bytes(b"12")
    assert "--overwrite replaces it" in refused(capsys, "--out", tmp_path, "--train-vocab", 320, c4)
    assert (tmp_path / "train.bin").read_bytes() == b"12"


def test_a_set_that_was_interrupted_does_not_open_and_is_made_by_the_same_command(
    c4: Path, streamed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--quiet", "--out", str(tmp_path), "--train-vocab", "320", str(c4)]

    def interrupted(_: Path, __: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(manifest, "publish", interrupted)
        assert stage.main(words) == 130
    with pytest.raises(manifest.TokenError, match="an unfinished prepare; the same command again finishes it"):
        token_set.open(tmp_path)
    assert stage.main(words) == 0
    names = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert names == {path.name: path.read_bytes() for path in streamed.iterdir()}
