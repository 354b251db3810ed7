"""Fixtures: the keys of aws-eks, and its program run under mocks."""

from __future__ import annotations

from pathlib import Path

import pytest
from aws_mocks import Amazon
from aws_xeon_program import OWN, Program, cent
from bad_settings import as_text
from program_recorder import Ran, run

from infra.config import stack_file
from infra.prices import table

STACK = "aws-eks"


@pytest.fixture
def eks_keys(key_file: Path) -> dict[str, str]:
    return {**stack_file.read(STACK), "publicKey": str(key_file), **OWN}


_RAN: dict[str, Ran] = {}
"""Runs by what they were asked with: each takes seconds, and nobody changes what it has declared."""


@pytest.fixture
def eks_program(eks_keys: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Program:
    """Run the program with these keys; a thing of any kind costs a cent an hour."""
    monkeypatch.setattr(table, "line", cent)

    def of_eks(*, stack: str = STACK, preview: bool = False, **changed: object) -> Ran:
        raw = {**eks_keys, **{key: as_text(value) for key, value in changed.items()}}
        asked = repr((stack, preview, changed))
        if asked not in _RAN or "capacityReservation" in changed:
            _RAN[asked] = run(raw, Amazon(), stack=stack, preview=preview)
        return _RAN[asked]

    return of_eks
