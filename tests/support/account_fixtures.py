"""A fixture: the settings of a stack in a cloud, with changes."""

from __future__ import annotations

import pytest
from account_checks import Make

from infra.config import stack_file
from infra.config.settings import Settings, load


@pytest.fixture
def make(good: dict[str, str]) -> Make:
    def settings(stack: str, **changes: str) -> Settings:
        mine = {"adminCidr": "203.0.113.0/24", "owner": "ada", "alertEmail": "ada@example.org"}
        return load(stack, {**stack_file.read(stack), **mine, "publicKey": good["publicKey"], **changes})

    return settings
