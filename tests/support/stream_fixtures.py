"""A small C4, and the token set of a job that streams it."""

from __future__ import annotations

from pathlib import Path

import c4_form
import pytest
from stream_reading import staged


@pytest.fixture(scope="module")
def c4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in C4's form: three files of 60 documents, and a validation file."""
    folder = tmp_path_factory.mktemp("c4")
    c4_form.write(folder)
    return folder


@pytest.fixture(scope="module")
def streamed(c4: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its token set: vocabulary, validation text, list of files."""
    return staged(tmp_path_factory.mktemp("streamed") / "set", c4)
