"""What prepare is given and cannot use: one line, exit code 2, nothing that opens as a token set."""

from __future__ import annotations

import gzip
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from small_corpus import documents_of, run

from training.data import token_set
from training.manifest import TokenError

pytest_plugins = ["corpus_fixtures"]


CASES = 25


def refuse(*_: Any) -> Any:
    raise OSError("no route")


def bad(tmp_path: Path, ranks: Path) -> dict[str, tuple[list[Any], str]]:
    for name in ("empty", "nothing", "held", "latin", "rows", "torn"):
        (tmp_path / name).mkdir()
    (tmp_path / "ok.txt").write_text("text " * 50)
    (tmp_path / "empty" / "a.txt").touch()
    (tmp_path / "held" / "wiki.test.raw").write_text(" one line \n another \n")
    (tmp_path / "latin" / "a.txt").write_bytes("né".encode("latin-1"))
    (tmp_path / "rows" / "a.jsonl").write_text('{"text": "a"}\n{"txt": "b"}\n')
    (tmp_path / "rows" / "b.jsonl").write_text('{"text": "a"}\n{"text": \n')
    (tmp_path / "rows" / "c.jsonl").write_text('{"text": "\\ud800"}\n')
    (tmp_path / "torn" / "a.parquet").write_bytes(b"PAR1" + b"x" * 100)
    os.mkfifo(tmp_path / "pipe")
    lines = ranks.read_text().splitlines(keepends=True)
    (tmp_path / "few.tiktoken").write_text("".join(lines[:100]))
    (tmp_path / "double.tiktoken").write_text("".join(lines) + "YWJjZGVm 5\n")
    (tmp_path / "none.tiktoken").touch()
    own = ["--ranks", ranks]
    return {
        "missing path": ([*own, tmp_path / "nowhere"], "nowhere: No such file"),
        "glob that matches nothing": ([*own, tmp_path / "*.xyz"], "no file matches"),
        "folder without text": ([*own, tmp_path / "nothing"], ".txt or wiki.train.raw in this folder"),
        "WikiText's other files": ([*own, tmp_path / "held"], "wiki.train.raw in this folder"),
        "empty corpus": ([*own, tmp_path / "empty"], "no text"),
        "one document": ([*own, tmp_path / "ok.txt"], "a single document"),
        "not UTF-8": ([*own, "--val-fraction", 0, tmp_path / "latin"], "a.txt: not UTF-8"),
        "all skipped": ([*own, "--invalid", "skip", tmp_path / "latin"], "no text but 1 skipped"),
        "key missing": ([*own, tmp_path / "rows" / "a.jsonl"], 'a.jsonl:2: no text under "text"'),
        "not JSON": ([*own, tmp_path / "rows" / "b.jsonl"], "b.jsonl:2: not a line of JSON"),
        "half a character": ([*own, tmp_path / "rows" / "c.jsonl"], "c.jsonl:1: not UTF-8"),
        "torn parquet": ([*own, tmp_path / "torn"], "a.parquet: "),
        "unreadable file": ([*own, "/proc/self/mem"], "mem: Input/output error"),
        "a pipe": ([*own, tmp_path / "pipe"], "not a regular file"),
        "no such data set": ([*own, f"hf:{tmp_path}/nowhere"], "hf:"),
        "no rank file": (["--ranks", tmp_path / "nowhere", tmp_path / "ok.txt"], "nowhere: No such file"),
        "not a rank file": (["--ranks", tmp_path / "ok.txt", tmp_path / "ok.txt"], "ok.txt:1: not a token in base64"),
        "empty rank file": (["--ranks", tmp_path / "none.tiktoken", tmp_path / "ok.txt"], "empty rank file"),
        "bytes missing": (["--ranks", tmp_path / "few.tiktoken", tmp_path / "ok.txt"], "no token for byte 0x64"),
        "double rank": (["--ranks", tmp_path / "double.tiktoken", tmp_path / "ok.txt"], "double"),
        "bad pattern": ([*own, "--pattern", "(", tmp_path / "ok.txt"], "pattern"),
        "vocabulary too small": (["--train-vocab", 200, tmp_path / "ok.txt"], "at least 258"),
        "text too little": (["--train-vocab", 9000, "--val-fraction", 0, tmp_path / "ok.txt"], "too little for more"),
        "unknown encoding": (["--encoding", "gpt5", tmp_path / "ok.txt"], "not one of gpt2"),
        "gpt2 out of reach": ([tmp_path / "ok.txt"], "could not be fetched"),
    }


@pytest.mark.parametrize("case", range(CASES))
def test_bad_input_is_one_line(tmp_path: Path, ranks: Path, capfd: Any, monkeypatch: Any, case: int) -> None:
    monkeypatch.setattr(tiktoken, "get_encoding", refuse)
    cases = bad(tmp_path, ranks)
    assert len(cases) == CASES
    arguments, line = list(cases.values())[case]
    assert run("--out", tmp_path / "out", "--quiet", *arguments) == 2
    out, err = capfd.readouterr()
    assert line in err and err.count("\n") == 1 and not out
    with pytest.raises(TokenError):
        token_set.open(tmp_path / "out")


def test_what_is_not_utf8_is_skipped_or_replaced_where_asked(folder: Path, ranks: Path, tmp_path: Path) -> None:
    (folder / "part1" / "bad.txt").write_bytes("né ".encode("latin-1") * 10)
    (folder / "rows.jsonl").write_bytes(b'{"text": "a\xffb"}\n{"text": "\\ud800 x"}\n')
    for choice, count in (("skip", 60), ("replace", 63)):
        out = tmp_path / choice
        assert run("--out", out, "--ranks", ranks, "--invalid", choice, folder) == 0
        opened = token_set.open(out, verify=True)
        found = [*documents_of(opened, "train"), *documents_of(opened, "val")]
        assert len(found) == count and opened.manifest["source"]["skipped"] == 63 - count
    assert {"a\ufffdb".encode(), "\ufffd x".encode()} < set(found)


def test_a_compressed_file_is_refused_not_tokenised(ranks: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"text " * 1000))
    assert run("--out", tmp_path / "out", "--ranks", ranks, "--val-fraction", 0, tmp_path / "a.txt.gz") == 2
    assert "not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("pyarrow", ["--encoding", "gpt2", "a.parquet"]),
        ("datasets", ["--encoding", "gpt2", "hf:some/name"]),
        ("tokenizers", ["--train-vocab", "300", "a.txt", "b.txt"]),
    ],
)
def test_a_missing_package_is_named(
    tmp_path: Path, capsys: Any, monkeypatch: Any, learned: Any, package: str, arguments: list[str]
) -> None:
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: learned.encoding())
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "a.parquet"):
        (tmp_path / name).write_text("text")
    assert run("--out", "out", "--quiet", *arguments) == 2
    err = capsys.readouterr().err
    assert f"needs the package {package}: pip install {package}" in err and err.count("\n") == 1
