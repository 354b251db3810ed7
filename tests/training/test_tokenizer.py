"""gigatoken and tiktoken: the same tokens of every text, the same token set; and tiktoken alone where they differ."""

from __future__ import annotations

import json
import random
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_corpus import contents, run, words

from training.data import encode, tokenizer, vocabulary
from training.data.prepare_journal import PrepareJournal
from training.data.tokenizer import EngineError, Gigatoken, Renewed, Tiktoken
from training.data.vocabulary import PATTERNS, Vocabulary
from training.manifest import SEPARATOR

pytest_plugins = ["corpus_fixtures"]

Pair = tuple[Gigatoken, Tiktoken]
PIECES = [
    *("a", "Zürich", " the", "don't", "'S", "'ll", "x2y", "1234567", " 42", "\u0663", "½", "漢字", "é", "ǅ", "e\u0301"),
    *("\u0627\u0644", "\u0939\u093f", "\U0001f642", "\U0001f469\u200d\U0001f469\u200d\U0001f467"),
    *(" ", "  ", "\t", "\n", "\r\n", "\n\n  ", "\u00a0", "\u3000", "\u2028", "\x85", "\x1c", "\0", "\ufeff", "\ufffd"),
    *("...", "?!\n", "//\r\n", " /", "_", "=" * 40, SEPARATOR, SEPARATOR[:-1], "<|", "|>"),
]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=40).map("".join))


@pytest.fixture(scope="module", params=sorted(PATTERNS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Both engines with each pattern; the vocabulary has merges of every kind of character that PIECES has."""
    draw = random.Random(3)
    texts = ["".join(draw.choices(PIECES, k=200)) + words(draw, 200) for _ in range(60)]
    learned = vocabulary.train(texts, 600)
    path = tmp_path_factory.mktemp("ranks") / "pieces.tiktoken"
    path.write_text(learned.text())
    known = vocabulary.read(path, request.param)
    encoding = known.encoding()
    return Gigatoken(known, encoding, path, 2), Tiktoken(encoding)


def same(pair: Pair, texts: list[tuple[str, bool]]) -> None:
    fast, slow = pair
    raw = [(text.encode(), closes) for text, closes in texts]
    assert fast.encode(raw).tolist() == slow.encode(raw).tolist()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.tuples(TEXTS, st.booleans()), max_size=6))
def test_both_engines_make_the_same_tokens_of_any_texts(pair: Pair, texts: list[tuple[str, bool]]) -> None:
    same(pair, texts)


def test_both_engines_agree_on_characters_of_every_category(pair: Pair) -> None:
    """Each of a seeded sample of all characters, before, between and after letters, digits, marks, spaces and ends."""
    draw = random.Random(4)
    by_category: dict[str, list[str]] = {}
    for code in range(sys.maxunicode + 1):
        if not 0xD800 <= code < 0xE000:
            by_category.setdefault(unicodedata.category(chr(code)), []).append(chr(code))
    for characters in by_category.values():
        for c in draw.sample(characters, min(40, len(characters))):
            same(pair, [(f"a{c}a 1{c}1 .{c}. {c} {c}{c}a\n{c}\nA{c}a'{c}s  {c}B{c} \n{c}\r\n{c}", True)])


@pytest.mark.parametrize("run_of", [" ", "\n", "\u3000", "a", "1", "=", "\u0301", "漢"])
def test_both_engines_agree_on_long_runs(pair: Pair, run_of: str) -> None:
    """Also on white space that tiktoken gives up on, where the text is cut into slices."""
    for length in (70_000, 1_000_000) if run_of.isspace() else (300_000,):
        same(pair, [("x", True), ("q " + run_of * (length // len(run_of)) + "x", True), ("y", False)])


def test_the_set_is_the_one_that_tiktoken_makes(folder: Path, ranks: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """To the byte, manifest and all; with passages, empty documents and what looks like the separator."""
    monkeypatch.setattr(encode, "BATCH", 3000)
    documents = ["", SEPARATOR, f"a{SEPARATOR}b", " ", "\n\n", words(random.Random(6), 700_000), "end"]
    (folder / "more.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    wish = ["--ranks", ranks, "--val-fraction", 0.1, folder]
    assert run("--out", tmp_path / "fast", *wish) == 0
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    assert run("--out", tmp_path / "slow", *wish) == 0
    assert contents(tmp_path / "fast") == contents(tmp_path / "slow")


def test_says_which_engine_made_the_tokens(folder: Path, ranks: Path, tmp_path: Path, capsys: Any) -> None:
    assert run("--out", tmp_path / "out", "--ranks", ranks, folder) == 0
    err = capsys.readouterr().err
    assert "encoding with gigatoken 0." in err and "made the same tokens of the sample" in err


def gone(monkeypatch: Any, ranks: Path) -> list[Any]:
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    return []


def own_pattern(monkeypatch: Any, ranks: Path) -> list[Any]:
    return ["--pattern", r"\w+|\s+"]


def gap(monkeypatch: Any, ranks: Path) -> list[Any]:
    lines = ranks.read_text().splitlines()
    ranks.write_text("\n".join(lines[:300] + lines[301:]) + "\n")
    return []


@pytest.mark.parametrize(
    ("spoil", "why"), [(gone, "not installed"), (own_pattern, "does not know"), (gap, "without a gap")]
)
def test_falls_back_to_tiktoken_and_says_why(
    folder: Path,
    learned: Vocabulary,
    tmp_path: Path,
    monkeypatch: Any,
    capsys: Any,
    spoil: Callable[..., Any],
    why: str,
) -> None:
    ranks = tmp_path / "own.tiktoken"
    ranks.write_text(learned.text())
    options = spoil(monkeypatch, ranks)
    assert run("--out", tmp_path / "out", "--ranks", ranks, *options, folder) == 0
    err = capsys.readouterr().err
    assert "encoding with tiktoken" in err and why in err and "encoding with gigatoken" not in err


def test_one_token_that_differs_and_tiktoken_makes_all_of_it_anew(
    folder: Path, ranks: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """Found in the middle of the corpus, after tokens were written; killed after that, gigatoken is not tried again."""
    monkeypatch.setattr(encode, "BATCH", 2000)
    monkeypatch.setattr(encode, "ONE_IN", 1)
    wish = ["--ranks", ranks, "--val-fraction", 0.1, folder]
    assert run("--out", tmp_path / "whole", *wish) == 0
    monkeypatch.setattr("training.data.prepare_journal.COMMIT", 0.0)
    right, calls = Gigatoken.tokens, [0]

    def wrong(self: Gigatoken, tokenizer: Renewed, text: bytes) -> Any:
        calls[0] += 1
        tokens = right(self, tokenizer, text)
        return tokens if calls[0] < 20 else np.where(tokens == tokens.max(initial=0), 7, tokens)

    monkeypatch.setattr(Gigatoken, "tokens", wrong)
    original, batches = PrepareJournal.append, [0]

    class Killed(BaseException):
        pass

    def killed(self: PrepareJournal, encoded: encode.Encoded) -> None:
        batches[0] += bool(self.engine_error)
        if batches[0] == 5:
            raise Killed
        original(self, encoded)

    monkeypatch.setattr(PrepareJournal, "append", killed)
    capsys.readouterr()
    with pytest.raises(Killed):
        run("--out", tmp_path / "out", *wish)
    assert "differ at token" in (err := capsys.readouterr().err) and "starting over with tiktoken" in err
    assert run("--out", tmp_path / "out", *wish) == 0
    err = capsys.readouterr().err
    assert "continuing after" in err and "encoding with tiktoken" in err and "differ at token" in err
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_what_tiktoken_has_of_no_use_to_gigatoken_is_refused(learned: Vocabulary, tmp_path: Path) -> None:
    """A word that no merge of two others makes: gigatoken panics in Rust, which is no Exception."""
    odd = Vocabulary("odd", {**learned.ranks, b"qqzzqq": learned.separator}, learned.pattern, learned.separator + 1)
    (tmp_path / "odd.tiktoken").write_text(odd.text())
    with pytest.raises(EngineError, match="failed"):
        Gigatoken(odd, odd.encoding(), tmp_path / "odd.tiktoken", 1)


def test_the_caches_are_dropped_in_proportion_to_their_use(monkeypatch: Any) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "thread_time", lambda: now[0])
    made: list[list[int]] = []

    def make() -> list[int]:
        now[0] += 1.0
        made.append([])
        return made[-1]

    def use(own: list[int]) -> None:
        now[0] += 0.5
        own.append(1)

    cached = Renewed(make, workers=2)
    for _ in range(1000):
        cached.run(use)
    assert sum(map(len, made)) == 1000
    assert max(map(len, made)) <= tokenizer.RENEW * 2 / 0.5 + 1
