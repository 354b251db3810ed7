"""A small corpus, and a vocabulary learned on its like."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from small_corpus import words

from training.data import vocabulary
from training.data.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def learned() -> Vocabulary:
    draw = random.Random(1)
    return vocabulary.train((words(draw, 300) for _ in range(40)), 320)


@pytest.fixture(scope="module")
def ranks(learned: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks") / "words.tiktoken"
    path.write_text(learned.text())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """60 small documents, in folders."""
    draw = random.Random(2)
    for number in range(60):
        path = tmp_path / "corpus" / f"part{number % 3}" / f"{number:02}.{('txt', 'py')[number % 2]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(words(draw, draw.randint(1, 900)).encode())
    return tmp_path / "corpus"
