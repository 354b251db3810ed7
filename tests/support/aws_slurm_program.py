"""Fixtures: the keys of aws-slurm, and its program run under mocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aws_mocks import OURS, Amazon
from aws_xeon_program import OWN, Program, cent
from bad_settings import as_text
from program_recorder import Ran
from recorded_runs import RecordedRuns

from infra.config import stack_file
from infra.prices import table

STACK = "aws-slurm"


@pytest.fixture
def slurm_keys(key_file: Path) -> dict[str, str]:
    return {**stack_file.read(STACK), "publicKey": str(key_file), **OWN, "image": OURS}


_RUNS = RecordedRuns()


@pytest.fixture
def slurm_program(slurm_keys: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Program:
    """Run the program with these keys; a thing of any kind costs a cent an hour."""
    monkeypatch.setattr(table, "line", cent)

    def of_slurm(*, stack: str = STACK, preview: bool = False, shared: bool = True, **changed: object) -> Ran:
        raw = {**slurm_keys, **{key: as_text(value) for key, value in changed.items()}}
        return _RUNS.run(raw, Amazon(), stack=stack, preview=preview, shared=shared)

    return of_slurm


def wrapper(ran: Ran) -> dict[str, Any]:
    """The template of the stack around the cluster."""
    found: dict[str, Any] = json.loads(ran["cluster"].inputs["templateBody"])
    return found


def configuration(ran: Ran) -> dict[str, Any]:
    """ParallelCluster's configuration in it."""
    found: dict[str, Any] = wrapper(ran)["Resources"]["Cluster"]["Properties"]["ClusterConfiguration"]
    return found
