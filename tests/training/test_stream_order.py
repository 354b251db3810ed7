"""The order of a stream: every document once an epoch, from the seed alone, the same from every position on."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import c4_form
import numpy as np
import pytest
import tiktoken
from stream_reading import documents, packed, staged

from training.data import token_set, tokenizer
from training.data.encode import Encoder
from training.data.readers import SourceError
from training.data.stream import documents as documents_module
from training.data.stream import packed as packed_module
from training.data.stream.documents import Place
from training.data.stream.packed import Packed, Position
from training.data.stream.source import open_source
from training.data.tokenizer import EngineError

pytest_plugins = ["stream_fixtures"]

TEXTS = 180  # of the small C4's train split


def texts(folder: Path, count: int, place: Place | None = None, **order: int) -> list[str]:
    """The first texts of a stream."""
    groups = documents(folder, **order).groups(place or Place())
    rows = (row for group in groups for row in group.rows)
    return [b"".join(part.text for part in row.documents).decode() for row in islice(rows, count)]


def taken(found: Packed, steps: int, position: Position | None = None) -> list[Any]:
    return list(islice(found.steps(3, 16, position or Position()), steps))


def test_an_epoch_has_every_document_once_and_the_next_one_in_another_order(c4: Path, streamed: Path) -> None:
    expected = [text for seed in range(3) for text in c4_form.documents(seed, 60)]
    both = texts(streamed, 2 * TEXTS)
    first, second = both[:TEXTS], both[TEXTS:]
    assert sorted(first) == sorted(second) == sorted(expected)
    assert len({tuple(order) for order in (first, second, expected)}) == 3
    assert texts(streamed, TEXTS) == first and texts(streamed, TEXTS, seed=6) != first


def by_datasets(program: str, *args: str) -> Any:
    """What a program with `datasets` prints as JSON. In a process of its own, as on a node: datasets walks through
    everything that the process has ever imported, and Pulumi changes how that is done."""
    pytest.importorskip("datasets")
    argv = [sys.executable, "-c", f"import datasets, json, sys\n{program}", *args]
    return json.loads(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120).stdout)


@pytest.mark.acceptance
def test_without_shuffling_it_is_the_order_in_which_datasets_streams_the_folder(c4: Path, streamed: Path) -> None:
    program = """
rows = datasets.load_dataset("json", data_files={"train": sys.argv[1]}, split="train", streaming=True)
print(json.dumps([row["text"] for row in rows]))
"""
    usual = by_datasets(program, str(c4 / "en" / "c4-train.*.json.gz"))
    assert texts(streamed, TEXTS, shuffle=0) == usual


@pytest.mark.acceptance
def test_the_splits_of_a_folder_are_those_that_datasets_finds(c4: Path) -> None:
    program = """
found = datasets.load_dataset_builder(sys.argv[1]).config.data_files
print(json.dumps({str(split): list(map(str, found[split])) for split in found}))
"""
    usual = by_datasets(program, str(c4))
    found = open_source(str(c4)).list()
    for split, files in (("train", found.train), ("validation", found.validation)):
        assert sorted(Path(name).name for name in usual[split]) == [Path(file.name).name for file in files]


def test_a_document_moves_by_no_more_than_its_group(streamed: Path) -> None:
    order = documents(streamed, shuffle=16)
    in_file_order = [
        text for file in order.in_order(0) for text in c4_form.documents(int(Path(file.name).name[9:14]), 60)
    ]
    moved = [abs(at - in_file_order.index(text)) for at, text in enumerate(texts(streamed, TEXTS, shuffle=16))]
    assert 0 < max(moved) < 16


@pytest.mark.parametrize("batch", [300, 1 << 18])
def test_every_step_goes_on_from_its_position_bit_for_bit(
    streamed: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """Over the ends of batches, groups, files and epochs, through a checkpoint's JSON."""
    monkeypatch.setattr(packed_module, "BATCH", batch)
    steps = taken(packed(streamed), 330)
    assert steps[-1].after.group.epoch >= 1
    for at in [*range(0, 12), 100, 200, 329]:
        position = Position.of(json.loads(json.dumps(steps[at].after.to_json())))
        again = taken(packed(streamed), 3, position)
        for step, expected in zip(again, steps[at + 1 : at + 4], strict=False):
            assert np.array_equal(step.windows, expected.windows) and step.after == expected.after


def test_windows_are_the_documents_one_after_the_other_with_separators(streamed: Path) -> None:
    steps = taken(packed(streamed), 330)
    flat = np.concatenate([step.windows[:, :-1].reshape(-1) for step in steps])
    assert all(np.array_equal(step.windows[1:, 0], step.windows[:-1, -1]) for step in steps), "each with the next token"
    opened = token_set.open(streamed)
    encoding = tokenizer.load(opened.encoding, opened.path)
    assert isinstance(encoding, tiktoken.Encoding)
    found = [encoding.decode(part.tolist()) for part in np.split(flat, np.flatnonzero(flat == opened.separator) + 1)]
    expected = texts(streamed, len(found) - 1)
    assert len(expected) > TEXTS and [text.removesuffix("<|endoftext|>") for text in found[:-1]] == expected


def test_a_position_goes_on_with_another_batch(streamed: Path) -> None:
    small = taken(packed(streamed), 4)
    flat = np.concatenate([step.windows[:, :-1].reshape(-1) for step in small[2:]])
    (large,) = islice(packed(streamed).steps(6, 16, small[1].after), 1)
    assert np.array_equal(large.windows[:, :-1].reshape(-1), flat)


@pytest.mark.parametrize("suffix", [".jsonl", ".json.gz", ".parquet"])
def test_a_place_in_a_file_of_any_kind_is_found_again(tmp_path: Path, suffix: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    found = c4_form.documents(1, 50)
    if suffix == ".parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"text": found, "url": found}), source / "a.parquet", row_group_size=7)
    else:
        raw = c4_form.lines(found)
        members = [gzip.compress(raw[:999]), gzip.compress(raw[999:])]
        (source / f"a{suffix}").write_bytes(b"".join(members) if "gz" in suffix else raw)
    (source / "validation.jsonl").write_bytes(c4_form.lines(found[:9]))
    streamed = staged(tmp_path / "set", source)
    groups = list(islice(documents(streamed, shuffle=8).groups(Place()), 9))
    rows = [row for group in groups[:7] for row in group.rows]
    assert sorted(b"".join(each.text for each in row.documents).decode() for row in rows) == sorted(found)
    for group, following in pairwise(groups):
        assert [row.number for row in next(documents(streamed, shuffle=8).groups(following.begins)).rows] == [
            row.number for row in following.rows
        ]
        assert len(group.rows) in (8, 2)


def test_what_is_held_out_of_a_source_without_validation_is_never_trained_on(tmp_path: Path) -> None:
    all_texts = c4_form.write(tmp_path / "source", validation=0)
    streamed = staged(tmp_path / "set", tmp_path / "source", "--val-fraction", 0.1)
    opened = token_set.open(streamed)
    encoding = tokenizer.load(opened.encoding, opened.path)
    assert isinstance(encoding, tiktoken.Encoding)
    held = encoding.decode(opened.val.tolist()).split("<|endoftext|>")[:-1]
    assert len(held) == 6 and set(held) < set(all_texts[:60])
    trained = texts(streamed, TEXTS - 6)
    assert sorted([*trained, *held]) == sorted(all_texts)
    assert set(texts(streamed, 2 * (TEXTS - 6))) == set(trained)


def test_a_source_without_any_text_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    c4_form.write(tmp_path / "source", files=1)
    streamed = staged(tmp_path / "set", tmp_path / "source")
    name = "c4-train.00000-of-00001.json.gz"
    size = (tmp_path / "source" / "en" / name).stat().st_size
    (tmp_path / "source" / "en" / name).write_bytes(gzip.compress(b" ", mtime=0).ljust(size, b"\0"))
    with pytest.raises(SourceError, match="no text in any file"):
        texts(streamed, 1)


def test_where_gigatoken_differs_tiktoken_goes_on_and_the_position_says_so(
    streamed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents_module, "UNSHUFFLED", 20)
    expected = taken(packed(streamed, shuffle=20), 200)
    said: list[str] = []
    found = packed(streamed, said, shuffle=20)
    compare = Encoder.compare

    def differs(self: Encoder, batch: Any) -> int:
        if self.reference is not None and batch[0].number >= 40:
            raise EngineError("planted: gigatoken and tiktoken differ")
        return compare(self, batch)

    monkeypatch.setattr(Encoder, "compare", differs)
    steps = taken(found, 200)
    assert all(np.array_equal(one.windows, two.windows) for one, two in zip(steps, expected, strict=True))
    assert said == [f"planted: gigatoken and tiktoken differ: going on with {tokenizer.Tiktoken.name}"]
    exact = [step.after.exact for step in steps]
    assert exact == sorted(exact) and not exact[0] and exact[-1]
    again = taken(packed(streamed, said, shuffle=20), 2, steps[150].after)
    assert len(said) == 1 and np.array_equal(again[0].windows, steps[151].windows)
