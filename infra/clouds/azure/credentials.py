"""The Azure subscription that the credentials are for."""

from __future__ import annotations

from infra.clouds.azure.rest import subscription


def account(region: str) -> str:
    """Its id, the same in every region. UsageError where none is chosen."""
    return subscription()
