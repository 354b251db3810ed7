"""Regions and zones. A zone is named by its id, which means the same place in every account; its name does not."""

from __future__ import annotations

import re

import pulumi_aws as aws

from infra.clouds.aws.names import DEFAULT_REGION, asking, region
from infra.config.settings import Settings
from infra.config.values import SettingsError
from infra.errors import UsageError

DEFAULT_ZONE = "use1-az6"
_REGION = re.compile(
    r"([a-z]{2})(-gov)?-(north|south|east|west|central|northeast|northwest|southeast|southwest)-([0-9])", re.ASCII
)
_SHORT = {
    **{"north": "n", "south": "s", "east": "e", "west": "w", "central": "c"},
    **{"northeast": "ne", "northwest": "nw", "southeast": "se", "southwest": "sw"},
}


def short(settings: Settings) -> str:
    """A region as zone ids write it: use1 for us-east-1. Raises SettingsError for what is no region's name."""
    parts = _REGION.fullmatch(region(settings))
    if parts is None:
        raise SettingsError("region", region(settings), "an AWS region such as us-east-1")
    return parts[1] + ("g" if parts[2] else "") + _SHORT[parts[3]] + parts[4]


def zone(settings: Settings) -> str:
    """The zone of all nodes. Raises SettingsError for one of another region, or where none is given."""
    given, prefix = settings.cloud.zone, short(settings)
    if not given and region(settings) == DEFAULT_REGION:
        return DEFAULT_ZONE
    if not re.fullmatch(rf"{prefix}-az[0-9]{{1,2}}", given):
        raise SettingsError("zone", given, f"the id of a zone of {region(settings)}, such as {prefix}-az1")
    return given


def check_offer(settings: Settings, instance_type: str, provider: aws.Provider) -> None:
    """Ask EC2 whether the zone has the type. Raises UsageError that names the zones that do."""
    offers = aws.ec2.get_instance_type_offerings(
        location_type="availability-zone-id",
        filters=[aws.ec2.GetInstanceTypeOfferingsFilterArgs(name="instance-type", values=[instance_type])],
        opts=asking(provider),
    )
    zones = sorted(set(offers.locations))
    if zone(settings) not in zones:
        there = f"set zone to one that does: {', '.join(zones)}" if zones else "nor does any other zone of the region"
        raise UsageError(f"zone = {zone(settings)!r}: does not offer {instance_type}; {there}")
