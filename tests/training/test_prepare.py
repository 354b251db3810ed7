"""prepare: every kind of source to a token set, the same bytes each time; long documents; progress."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_corpus import WORDS, contents, documents_of, run, words

from training.data import readers, token_set
from training.data import tokenizer as text
from training.data.encode import Division
from training.data.readers import passages
from training.data.sources import corpus, walk
from training.data.vocabulary import PATTERNS, Vocabulary
from training.progress import Progress, duration

ROOT = Path(__file__).resolve().parents[2]
pytest_plugins = ["corpus_fixtures"]


def test_a_folder_to_tokens_and_back(folder: Path, ranks: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("--out", out, "--ranks", ranks, "--val-fraction", 0.1, folder) == 0
    opened = token_set.open(out, verify=True)
    train, val = documents_of(opened, "train"), documents_of(opened, "val")
    originals = [path.read_bytes() for path in sorted(folder.rglob("*.*"))]
    assert sorted(train + val) == sorted(originals)
    assert [document for document in originals if document in set(train)] == train  # in the order of the names
    assert len(val) == 6
    for split, found in (("train", train), ("val", val)):
        facts = opened.manifest["splits"][split]
        assert facts["documents"] == len(found) and facts["bytes_of_text"] == sum(map(len, found))
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "train.bin", "val.bin", "vocab.tiktoken"]


def test_the_same_bytes_whatever_the_number_of_workers(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("training.data.encode.BATCH", 3000)  # many batches
    made = []
    for workers in (1, 2, 7):
        out = tmp_path / f"out{workers}"
        assert run("--out", out, "--train-vocab", 300, "--workers", workers, "--val-fraction", 0.1, folder) == 0
        made.append(contents(out))
    assert made[0] == made[1] == made[2]
    assert run("--out", tmp_path / "seed", "--train-vocab", 300, "--seed", 2, "--val-fraction", 0.1, folder) == 0
    assert contents(tmp_path / "seed")["val.bin"] != made[0]["val.bin"]


@pytest.mark.parametrize("longest", [readers.LONGEST, 40])  # 40: every document is read in passages
@pytest.mark.parametrize("kind", ["text", "rows"])
def test_lines_are_documents_where_that_is_asked_for(
    tmp_path: Path, ranks: Path, monkeypatch: Any, kind: str, longest: int
) -> None:
    monkeypatch.setattr(readers, "LONGEST", longest)
    monkeypatch.setattr(readers, "PASSAGE", 20)
    lines = [
        " = Title = ",
        "",
        "A line of text, which is longer than a passage, or two.",
        " \t ",
        "né 漢字 ",
        *"abc",
    ] * 5
    whole = "\r\n".join(lines)
    if kind == "text":
        source = tmp_path / "wiki.train.raw"
        source.write_bytes(whole.encode())
    else:  # as the hub has wikitext: a line and its end in each row
        source = tmp_path / "wiki.jsonl"
        source.write_text("".join(json.dumps({"text": f"{line}\n"}) + "\n" for line in lines))
    arguments = ["--ranks", ranks, "--val-fraction", 0.2, source]
    assert run("--out", tmp_path / "out", "--lines", *arguments) == 0
    opened = token_set.open(tmp_path / "out", verify=True)
    expected = sorted(line.encode() for line in lines if line.strip())
    assert sorted(documents_of(opened, "train") + documents_of(opened, "val")) == expected
    assert opened.manifest["source"]["documents"] == "lines"
    assert run("--out", tmp_path / "out", "--lines", *arguments) == 0
    assert run("--out", tmp_path / "out", *arguments) == 2, "whole documents are another set"


@pytest.mark.parametrize("suffix", ["raw", "tokens"])
@pytest.mark.parametrize("below", [".", "wikitext-103"])
def test_of_wikitext_as_published_the_training_file_alone_is_read(
    tmp_path: Path, ranks: Path, suffix: str, below: str
) -> None:
    folder = tmp_path / "archive" / below
    folder.mkdir(parents=True)
    for split in ("test", "train", "valid"):
        text = "".join(f" = {split} {number} = \n \n A line of {split} . \n" for number in range(20))
        (folder / f"wiki.{split}.{suffix}").write_text(text)
    (folder / "README.txt").write_text("About the test text.")
    arguments = ["--lines", "--ranks", ranks, "--val-fraction", 0.2]
    assert run("--out", tmp_path / "folder", *arguments, tmp_path / "archive") == 0
    assert run("--out", tmp_path / "file", *arguments, folder / f"wiki.train.{suffix}") == 0
    one, other = contents(tmp_path / "folder"), contents(tmp_path / "file")
    assert one["train.bin"] == other["train.bin"] and one["val.bin"] == other["val.bin"]
    opened = token_set.open(tmp_path / "folder", verify=True)
    documents = [*documents_of(opened, "train"), *documents_of(opened, "val")]
    assert len(documents) == 40 and all(b"train" in document for document in documents)


def test_of_both_kinds_of_wikitext_in_one_folder_one_is_read(tmp_path: Path) -> None:
    for name in ("wiki.train.tokens", "wiki.train.raw"):
        (tmp_path / name).write_text(" one line \n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.txt").touch()
    assert list(walk(tmp_path)) == [tmp_path / "wiki.train.raw"], "the same text twice would be trained on twice"


def sources(folder: Path, kind: str) -> list[str]:
    """The same documents as another kind of source; one that datasets reads too."""
    originals = [path.read_bytes().decode() for path in sorted(folder.rglob("*.*"))]
    home = folder.parent / kind
    home.mkdir()
    if kind == "glob":
        for number, document in enumerate(originals):
            (home / f"{number:03}.rst").write_bytes(document.encode())
        return [f"{home}/*.rst"]
    if kind == "parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"id": range(60), "body": originals}), home / "a.parquet", row_group_size=7)
        return ["--text-key", "body", str(home / "a.parquet")]
    for number, part in enumerate((originals[:33], originals[33:])):
        lines = "".join(json.dumps({"text": document, "n": 1}) + "\n" for document in part)
        (home / f"{number}.jsonl").write_text(lines)
    hub = {"hub": [f"hf:{home}"], "stream": ["--stream", f"hf:{home}"]}
    return hub.get(kind, [str(home / "0.jsonl"), str(home / "1.jsonl")])


@pytest.mark.parametrize(
    "kind",
    ["glob", "jsonl", "parquet", *(pytest.param(kind, marks=pytest.mark.acceptance) for kind in ("hub", "stream"))],
)
def test_every_kind_of_source_gives_the_same_tokens(folder: Path, ranks: Path, tmp_path: Path, kind: str) -> None:
    pytest.importorskip({"parquet": "pyarrow", "hub": "datasets", "stream": "datasets"}.get(kind, "json"))
    assert run("--out", tmp_path / "files", "--ranks", ranks, "--val-fraction", 0.1, folder) == 0
    # In a process of its own, as on a node: datasets walks through everything that the process has ever imported.
    options = ["--out", tmp_path / "out", "--ranks", ranks, "--val-fraction", 0.1, *sources(folder, kind)]
    argv = [sys.executable, "-m", "training.data.prepare", *map(str, options)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    one, other = contents(tmp_path / "files"), contents(tmp_path / "out")
    assert one["train.bin"] == other["train.bin"] and one["val.bin"] == other["val.bin"]


@pytest.mark.parametrize("more", [{}, {"split": "test", "revision": "v2"}])
def test_a_data_set_of_the_hub_is_loaded_in_the_config_that_is_named(monkeypatch: Any, more: dict[str, Any]) -> None:
    name, config = "Salesforce/wikitext", "wikitext-103-raw-v1"
    asked: list[tuple[Any, ...]] = []
    fake = SimpleNamespace(
        disable_progress_bars=lambda: None, load_dataset=lambda *words, **options: asked.append((words, options))
    )
    monkeypatch.setitem(sys.modules, "datasets", fake)
    corpus([f"hf:{name}:{config}", f"hf:{name}"], stream=True, **more)
    options = {"split": "train", "revision": None, "streaming": True} | more
    assert asked == [((name, config), options), ((name, None), options)]


def test_a_large_vocabulary_is_uint32(learned: Vocabulary, folder: Path, tmp_path: Path) -> None:
    more = {f"w{number}".encode() * 3: 400 + number for number in range(70_000)}
    large = Vocabulary("large", {**learned.ranks, **more}, learned.pattern, 70_400)
    (tmp_path / "large.tiktoken").write_text(large.text())
    assert run("--out", tmp_path / "out", "--ranks", tmp_path / "large.tiktoken", folder) == 0
    opened = token_set.open(tmp_path / "out", verify=True)
    assert opened.train.dtype == np.dtype("<u4") and opened.train.max() == 70_400  # the separator


def test_no_validation_where_none_is_asked_for(folder: Path, ranks: Path, tmp_path: Path) -> None:
    assert run("--out", tmp_path / "out", "--ranks", ranks, "--val-fraction", 0, folder) == 0
    assert len(token_set.open(tmp_path / "out", verify=True).val) == 0


@given(st.floats(0.001, 0.5), st.integers(0, 99), st.integers(2, 3000))
def test_the_division_is_as_large_as_asked_and_never_empty(fraction: float, seed: int, documents: int) -> None:
    division = Division.of(fraction, seed, lambda limit: min(documents, limit))
    val = [index for index in range(documents) if division.split(index) == "val"]
    assert val and len(val) < documents
    assert abs(len(val) - documents * fraction) <= 2 + documents * fraction * 0.3


# --- long documents


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(WORDS), min_size=40, max_size=400).map("".join), st.sampled_from(sorted(PATTERNS)))
def test_passages_have_the_tokens_of_the_whole(
    learned: Vocabulary, monkeypatch: Any, document: str, pattern: str
) -> None:
    monkeypatch.setattr(readers, "LONGEST", 60)
    monkeypatch.setattr(readers, "PASSAGE", 40)
    monkeypatch.setattr(readers, "NEARLY", readers.EXACT)
    encoding = Vocabulary("x", learned.ranks, PATTERNS[pattern], learned.separator).encoding()
    parts = list(passages(io.StringIO(document, newline="")))
    assert "".join(part for part, _ in parts) == document
    assert [ends for _, ends in parts] == [False] * (len(parts) - 1) + [True]
    if all(part[-1].isalnum() and after[0] in " \t\r\n" for (part, _), (after, _) in pairwise(parts)):
        assert [token for part, _ in parts for token in text.encode(encoding, part)] == text.encode(encoding, document)


def test_one_large_file_is_divided_and_loses_nothing(ranks: Path, tmp_path: Path) -> None:
    draw = random.Random(3)
    large = words(draw, 700_000)
    (tmp_path / "book.txt").write_bytes(large.encode())
    assert run("--out", tmp_path / "out", "--ranks", ranks, "--val-fraction", 0.1, tmp_path / "book.txt") == 0
    opened = token_set.open(tmp_path / "out", verify=True)
    facts = opened.manifest["splits"]
    assert facts["train"]["bytes_of_text"] + facts["val"]["bytes_of_text"] == len(large.encode())
    assert 0.05 < facts["val"]["bytes_of_text"] / len(large.encode()) < 0.2
    for split in ("train", "val"):
        for part in documents_of(opened, split):
            assert part.decode() in large
    # nothing but the holes that validation leaves closes a part of it
    assert facts["train"]["documents"] <= facts["val"]["documents"] + 1


@pytest.mark.parametrize(
    "text_",
    [" " * 1_000_000 + "x", "\n" * 900_000 + "x", "a" * 1_000_000, "漢" * 300_000],
    ids=["spaces", "lines", "letters", "ideographs"],  # pytest would put the text itself into the name
)
def test_text_that_is_hard_on_the_pattern(ranks: Path, tmp_path: Path, text_: str) -> None:
    (tmp_path / "hard.txt").write_text(text_)
    assert run("--out", tmp_path / "out", "--ranks", ranks, "--val-fraction", 0, tmp_path / "hard.txt") == 0
    assert documents_of(token_set.open(tmp_path / "out"), "train") == [text_.encode()]


def test_progress_is_lines_where_there_is_no_terminal(folder: Path, ranks: Path, tmp_path: Path, capsys: Any) -> None:
    assert run("--out", tmp_path / "out", "--ranks", ranks, folder) == 0
    err = capsys.readouterr().err
    assert "100% of " in err and " MB/s  ETA 0s" in err and "\r" not in err
    assert run("--out", tmp_path / "quiet", "--ranks", ranks, "--quiet", folder) == 0
    assert not any(capsys.readouterr())


def test_progress_is_a_bar_on_a_terminal() -> None:

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    progress = Progress(1000, out=out)
    progress.shown -= 1
    progress.advance(500, 900)
    assert out.getvalue().startswith("\r 50% [" + "#" * 15 + " " * 15 + "] of 0.0 MB")
    assert [duration(seconds) for seconds in (3, 62, 7260)] == ["3s", "1m02s", "2h01m"]
