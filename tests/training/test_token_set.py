"""Token sets: written, opened, verified; every mutation of one is detected."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import token_files
from hypothesis import given
from hypothesis import strategies as st

from training import manifest
from training.data import token_set, tokenizer, vocabulary
from training.manifest import TokenError

WORDS = ["def ", "return ", "self", "(", ")", "\n    ", "import ", "é", "漢字", "'ll", "x", "0", "12345", "  ", "\t"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set with a vocabulary file of its own, as prepare leaves it."""
    folder = tmp_path_factory.mktemp("set")
    draw = random.Random(1)
    learned = vocabulary.train(("".join(draw.choices(WORDS, k=200)) for _ in range(50)), 300)
    (folder / "vocab.tiktoken").write_text(learned.text())
    encoding = {
        "name": learned.name,
        "ranks": "vocab.tiktoken",
        "sha256": learned.digest(),
        "pattern": learned.pattern,
        "special": {manifest.SEPARATOR: learned.separator},
    }
    train, val = ([draw.randrange(300) for _ in range(count)] for count in (700, 700))
    token_files.write(
        folder, train=train, val=val, vocab_size=300, encoding=encoding, text_bytes={"train": 2100, "val": 9}
    )
    return folder


def test_what_was_written_is_read(made: Path) -> None:
    opened = token_set.open(made, verify=True)
    assert opened.vocab_size == 300 and len(opened.train) == len(opened.val) == 700
    assert opened.train.dtype == np.dtype("<u2") and not opened.train.flags.writeable
    assert opened.bytes_per_token("train") == 3.0
    encoding = tokenizer.load(opened.encoding, made)
    assert tokenizer.separator(encoding) == 299


@pytest.mark.parametrize(("size", "dtype"), [(300, "<u2"), (65536, "<u2"), (65537, "<u4"), (200019, "<u4")])
def test_width_by_vocabulary(tmp_path: Path, size: int, dtype: str) -> None:
    opened = token_files.write(tmp_path, train=[0, size - 1], val=[], vocab_size=size, encoding={"name": "gpt2"})
    assert opened.train.dtype == np.dtype(dtype) and opened.train.tolist() == [0, size - 1] and len(opened.val) == 0
    assert (tmp_path / "train.bin").stat().st_size == 2 * np.dtype(dtype).itemsize


def flip(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def truncate(path: Path, draw: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: draw.randrange(len(data))])


def extend(path: Path, draw: random.Random) -> None:
    path.write_bytes(path.read_bytes() + draw.randbytes(draw.randint(1, 9)))


def exchange(path: Path, draw: random.Random) -> None:
    """Two pieces of the same file change places."""
    data = bytearray(path.read_bytes())
    while True:
        a, b = draw.randrange(len(data) - 4), draw.randrange(len(data) - 4)
        if abs(a - b) >= 4 and data[a : a + 4] != data[b : b + 4]:
            break
    data[a : a + 4], data[b : b + 4] = data[b : b + 4], data[a : a + 4]
    path.write_bytes(data)


def remove(path: Path, draw: random.Random) -> None:
    path.unlink()


def swap(path: Path, draw: random.Random) -> None:
    names = ("train.bin", "val.bin", "vocab.tiktoken", "manifest.json")
    other = draw.choice([name for name in names if name != path.name])
    mine, theirs = path.read_bytes(), (path.parent / other).read_bytes()
    path.write_bytes(theirs)
    (path.parent / other).write_bytes(mine)


def edit(path: Path, draw: random.Random) -> None:
    """One value of the manifest becomes another, or a key goes; the JSON stays good."""
    path = path.parent / manifest.NAME
    content = json.loads(path.read_text())
    inside = draw.choice([content, content["splits"]["train"], content["splits"]["val"], content["encoding"]])
    key = draw.choice(sorted(inside))
    if draw.random() < 0.3:
        del inside[key]
    elif isinstance(inside[key], int):
        inside[key] += draw.choice([-1, 1, 1000])
    elif isinstance(inside[key], str):
        inside[key] += draw.choice("x0 ")
    else:
        inside[key] = {}
    path.write_text(json.dumps(content, sort_keys=True, indent=1) + "\n")


MUTATIONS: dict[Callable[[Path, random.Random], None], int] = {
    flip: 60,
    truncate: 20,
    extend: 20,
    exchange: 20,
    remove: 8,
    swap: 12,
    edit: 40,
}
"""How many times each is tried."""


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_every_mutation_is_detected(made: Path, tmp_path: Path, mutate: Callable[[Path, random.Random], None]) -> None:
    names = ["train.bin", "val.bin", "vocab.tiktoken", "manifest.json"]
    for seed in range(MUTATIONS[mutate]):
        draw = random.Random(seed)
        folder = shutil.copytree(made, tmp_path / str(seed))
        mutate(folder / names[draw.randrange(len(names))], draw)
        with pytest.raises(TokenError) as error:
            token_set.open(folder, verify=True)
        assert "\n" not in str(error.value) and str(folder) in str(error.value), seed


def test_sizes_are_checked_without_verify(made: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(made, tmp_path / "set")
    with (folder / "val.bin").open("ab") as file:
        file.write(b"\0\0")
    with pytest.raises(TokenError, match=r"val\.bin: 1402 bytes, the manifest says 1400"):
        token_set.open(folder)


def test_a_manifest_does_not_lead_out_of_its_folder(made: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(made, tmp_path / "set")
    content = json.loads((folder / manifest.NAME).read_text())
    content["splits"]["train"]["file"] = "../../etc/passwd"
    (folder / manifest.NAME).write_text(manifest.render(content))
    with pytest.raises(TokenError, match="not a plain file name"):
        token_set.open(folder)
    content["splits"]["train"]["file"] = "train.bin"
    content["encoding"]["ranks"] = "../set/vocab.tiktoken"
    (folder / manifest.NAME).write_text(manifest.render(content))
    with pytest.raises(TokenError, match="not a plain file name"):
        token_set.open(folder)


def test_another_rank_file_is_refused(made: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(made, tmp_path / "set")
    opened = token_set.open(folder)
    other = vocabulary.train(["another text altogether " * 20], 270)
    (folder / "vocab.tiktoken").write_text(other.text())
    with pytest.raises(vocabulary.VocabularyError, match="not the rank file that the tokens were made with"):
        tokenizer.load(opened.encoding, folder)


@given(st.lists(st.integers(0, 50256), min_size=1, max_size=50), st.lists(st.integers(0, 50256), max_size=20))
def test_nanogpts_bare_folder(tmp_path_factory: pytest.TempPathFactory, train: list[int], val: list[int]) -> None:
    folder = tmp_path_factory.mktemp("bare")
    np.array(train, dtype=np.uint16).tofile(folder / "train.bin")
    np.array(val, dtype=np.uint16).tofile(folder / "val.bin")
    opened = token_set.open(folder, verify=True)
    assert opened.train.tolist() == train and opened.val.tolist() == val
    assert opened.vocab_size == 50257 and opened.encoding == {"name": "gpt2"}
    assert opened.bytes_per_token("train") is None


def test_bare_folders_that_are_something_else(tmp_path: Path) -> None:
    np.array([5, 60000], dtype=np.uint16).tofile(tmp_path / "train.bin")
    assert len(token_set.open(tmp_path).val) == 0
    with pytest.raises(TokenError, match="token 60000 is beyond gpt2's vocabulary of 50257"):
        token_set.open(tmp_path, verify=True)
    (tmp_path / "meta.pkl").write_bytes(b"cos\nsystem\n(S'touch /tmp/ran'\ntR.")
    with pytest.raises(TokenError, match=r"meta\.pkl"):
        token_set.open(tmp_path)
    (tmp_path / "meta.pkl").unlink()
    (tmp_path / "train.bin").write_bytes(b"123")
    with pytest.raises(TokenError, match="3 bytes are not a whole number"):
        token_set.open(tmp_path)


def test_what_is_no_token_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "half" / manifest.WORK).mkdir(parents=True)
    (tmp_path / "half" / "train.bin").write_bytes(b"1234")
    reasons = {"nowhere": "no such folder", "file": "not a folder", ".": "no token set", "half": "unfinished"}
    for name, line in reasons.items():
        assert token_set.main([str(tmp_path / name)]) == 2
        out = capsys.readouterr()
        assert line in out.err and out.err.count("\n") == 1 and not out.out


def test_the_command_verifies(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert token_set.main([str(made)]) == 0
    assert "verified" in capsys.readouterr().out
