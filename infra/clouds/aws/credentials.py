"""The AWS account that the credentials are for."""

from __future__ import annotations

from infra.clouds.aws import api


def account(region: str) -> str:
    """Its number. UsageError without credentials that work, OperationError where AWS does not answer."""
    return api.identity(region)["Account"]
