"""The AWS account that the credentials are for."""

from __future__ import annotations

import os

from infra.clouds.aws import api
from infra.state.ownership import Location


def location(region: str) -> Location:
    """Raises UsageError without credentials that work, OperationError where AWS does not answer."""
    return Location("aws", region, api.identity(region)["Account"], os.environ.get("AWS_PROFILE", ""))
