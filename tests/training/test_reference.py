"""The README's table of a job file's keys is the one that their declarations make."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from job_keys_table import SECTIONS, _meanings, table

README = Path(__file__).resolve().parents[2] / "README.md"


def test_every_key_says_what_it_is() -> None:
    meanings = _meanings()
    keys = [(section.__name__, field.name) for section in SECTIONS for field in dataclasses.fields(section)]
    assert len(keys) > 35 and not [key for key in keys if not meanings.get(key, "").strip()]


def test_the_readme_has_the_table() -> None:
    assert table() in README.read_text(), "put the output of tests/support/job_keys_table.py there"
