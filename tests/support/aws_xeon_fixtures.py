"""Fixtures: the keys of aws-xeon, and its program."""

from __future__ import annotations

from pathlib import Path

import pytest
from aws_mocks import Amazon
from aws_xeon_program import OWN, STACK, Program, cent
from bad_settings import as_text
from program_recorder import Ran
from recorded_runs import RecordedRuns

from infra.config import stack_file
from infra.prices import table

_RUNS = RecordedRuns()


@pytest.fixture
def keys(key_file: Path) -> dict[str, str]:
    return {**stack_file.read(STACK), "publicKey": str(key_file), **OWN}


@pytest.fixture
def program(keys: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Program:
    """Run the program with these keys; a thing of any kind costs a cent an hour."""
    monkeypatch.setattr(table, "line", cent)

    def of_aws(
        *, stack: str = STACK, preview: bool = False, kept: bool = False, shared: bool = True, **changed: object
    ) -> Ran:
        raw = {**keys, **{key: as_text(value) for key, value in changed.items()}}
        return _RUNS.run(raw, Amazon(kept=kept), stack=stack, preview=preview, shared=shared)

    return of_aws
