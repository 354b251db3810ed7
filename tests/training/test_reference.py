"""The README's table of a job file's keys is the one that their declarations make."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from training import reference

README = Path(__file__).resolve().parents[2] / "README.md"


def test_every_key_says_what_it_is() -> None:
    meanings = reference._meanings()
    keys = [(section.__name__, field.name) for section in reference.SECTIONS for field in dataclasses.fields(section)]
    assert len(keys) > 35 and not [key for key in keys if not meanings.get(key, "").strip()]


def test_the_readme_has_the_table() -> None:
    assert reference.table() in README.read_text(), "put the output of `python -m training.reference` there"
