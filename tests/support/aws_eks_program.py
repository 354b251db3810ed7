"""Fixtures: the keys of aws-eks, and its program run under mocks."""

from __future__ import annotations

from pathlib import Path

import pytest
from aws_mocks import Amazon
from aws_xeon_program import OWN, Program, cent
from bad_settings import as_text
from program_recorder import Ran
from recorded_runs import RecordedRuns

from infra.config import stack_file
from infra.prices import table

STACK = "aws-eks"


@pytest.fixture
def eks_keys(key_file: Path) -> dict[str, str]:
    return {**stack_file.read(STACK), "publicKey": str(key_file), **OWN}


_RUNS = RecordedRuns()


@pytest.fixture
def eks_program(eks_keys: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Program:
    """Run the program with these keys; a thing of any kind costs a cent an hour."""
    monkeypatch.setattr(table, "line", cent)

    def of_eks(*, stack: str = STACK, preview: bool = False, shared: bool = True, **changed: object) -> Ran:
        raw = {**eks_keys, **{key: as_text(value) for key, value in changed.items()}}
        return _RUNS.run(raw, Amazon(), stack=stack, preview=preview, shared=shared)

    return of_eks
