"""The AWS account of the credentials."""

from __future__ import annotations

import os

from infra.clouds.aws import api
from infra.state.ownership import Location


def location(region: str) -> Location:
    """Account and region. Raises UsageError without working credentials, OperationError if AWS does not answer."""
    return Location("aws", region, api.identity(region)["Account"], os.environ.get("AWS_PROFILE", ""))
