"""The Azure subscription that the credentials are for."""

from __future__ import annotations

from infra.clouds.azure.rest import subscription
from infra.state.ownership import Location


def location(region: str) -> Location:
    """Raises UsageError where no subscription is chosen."""
    return Location("azure", region, subscription())
