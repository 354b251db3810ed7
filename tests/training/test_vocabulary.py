"""Vocabularies: tiktoken with a trained one loses nothing; rank files are tiktoken's own."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_corpus import WORDS, documents_of, run, words

from training.data import token_set, tokenizer, vocabulary
from training.data.tokenizer import Tiktoken
from training.data.vocabulary import PATTERNS, Vocabulary
from training.manifest import SEPARATOR

pytest_plugins = ["corpus_fixtures"]

any_text = st.one_of(st.text(max_size=300), st.lists(st.sampled_from(WORDS), max_size=300).map("".join))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(any_text)
def test_a_trained_vocabulary_loses_nothing(learned: Vocabulary, text_: str) -> None:
    encoding = learned.encoding()
    assert isinstance(encoding, tiktoken.Encoding)
    assert learned.size == 320 == encoding.n_vocab
    coded = tokenizer.encode(encoding, text_)
    assert encoding.decode_bytes(coded) == text_.encode()
    assert tokenizer.decode(encoding, coded) == text_ == "".join(tokenizer.stream(encoding, coded))
    assert learned.separator not in coded  # also where the text says <|endoftext|>


def test_the_separator_in_a_text_is_text(learned: Vocabulary) -> None:
    encoding = learned.encoding()
    assert tokenizer.separator(encoding) not in tokenizer.encode(encoding, f"a{SEPARATOR}b")
    assert tokenizer.decode(encoding, [*tokenizer.encode(encoding, "é"), 319, 5000]) == f"é{SEPARATOR}\ufffd"


def test_the_rank_file_is_tiktokens(learned: Vocabulary, ranks: Path, monkeypatch: Any) -> None:
    from tiktoken.load import load_tiktoken_bpe

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")  # it would keep a copy of this one too
    assert load_tiktoken_bpe(str(ranks)) == dict(learned.ranks)
    again = vocabulary.read(ranks)
    assert (again.ranks, again.size, again.separator) == (dict(learned.ranks), 320, 319)
    sample = [words(random.Random(4), 5000)]
    assert vocabulary.train(sample, 400) == vocabulary.train(sample, 400)


def test_somebodys_own_pattern_drops_nothing(ranks: Path, tmp_path: Path) -> None:
    """tiktoken leaves out what its pattern does not match."""
    (tmp_path / "a.txt").write_text("two words, and more")
    arguments = ["--ranks", ranks, "--pattern", "[a-z]+", "--val-fraction", 0, tmp_path / "a.txt"]
    assert run("--out", tmp_path / "out", *arguments) == 0
    assert documents_of(token_set.open(tmp_path / "out"), "train") == [b"two words, and more"]


def test_gpt2_where_its_ranks_can_be_had(learned: Vocabulary, folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """The set carries the ranks with it: what reads it needs no download."""
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: learned.encoding())
    assert run("--out", tmp_path / "out", folder) == 0
    opened = token_set.open(tmp_path / "out", verify=True)
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: pytest.fail("fetched again"))
    assert opened.encoding["name"] == "gpt2" and documents_of(opened, "val")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(any_text)
def test_our_form_of_gpt2s_pattern_finds_tiktokens_words(learned: Vocabulary, text_: str) -> None:
    from tiktoken_ext.openai_public import r50k_pat_str

    theirs = tiktoken.Encoding(
        "theirs", pat_str=r50k_pat_str, mergeable_ranks=dict(learned.ranks), special_tokens={SEPARATOR: 319}
    )
    assert learned.pattern == PATTERNS["gpt2"]
    assert tokenizer.encode(learned.encoding(), text_) == theirs.encode_ordinary(text_)


documents = st.lists(st.tuples(st.one_of(any_text, st.just(f"x{SEPARATOR} y")), st.booleans()), max_size=9)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents)
def test_documents_in_one_call_are_what_they_are_alone(learned: Vocabulary, texts: list[tuple[str, bool]]) -> None:
    encoding = learned.encoding()
    assert isinstance(encoding, tiktoken.Encoding)
    expected = [t for text_, closes in texts for t in [*encoding.encode_ordinary(text_), *([319] * closes)]]
    assert Tiktoken(encoding).encode([(text_.encode(), closes) for text_, closes in texts]).tolist() == expected


def test_a_hard_text_among_others(learned: Vocabulary) -> None:
    """Where the pattern's engine gives up on the batch, every document still comes whole and closed."""
    encoding = learned.encoding()
    assert isinstance(encoding, tiktoken.Encoding)
    texts = [("one", True), (" " * 1_000_000 + "x", True), ("two", True)]
    coded = Tiktoken(encoding).encode([(text_.encode(), closes) for text_, closes in texts]).tolist()
    assert encoding.decode(coded) == SEPARATOR.join(text_ for text_, _ in texts) + SEPARATOR
    assert coded.count(319) == 3
