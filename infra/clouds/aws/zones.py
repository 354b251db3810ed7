"""Regions and zones. Zones are given by id, which means the same place in every account; a zone's name does not."""

from __future__ import annotations

import re

import pulumi_aws as aws

from infra.clouds.aws.names import DEFAULT_REGION, asking, region
from infra.config.settings import Settings
from infra.config.values import SettingsError
from infra.errors import UsageError
from infra.prices import table

DEFAULT_ZONE = "use1-az6"
_REGION = re.compile(
    r"([a-z]{2})(-gov)?-(north|south|east|west|central|northeast|northwest|southeast|southwest)-([0-9])", re.ASCII
)
_SHORT = {
    **{"north": "n", "south": "s", "east": "e", "west": "w", "central": "c"},
    **{"northeast": "ne", "northwest": "nw", "southeast": "se", "southwest": "sw"},
}


def short(settings: Settings) -> str:
    """A region's form in zone ids: use1 for us-east-1. Raises SettingsError for an invalid region name."""
    parts = _REGION.fullmatch(region(settings))
    if parts is None:
        raise SettingsError("region", region(settings), "an AWS region such as us-east-1")
    return parts[1] + ("g" if parts[2] else "") + _SHORT[parts[3]] + parts[4]


def zone(settings: Settings) -> str:
    """The zone of all nodes. Raises SettingsError if none is given, or if it is in another region."""
    given, prefix = settings.cloud.zone, short(settings)
    if not given and region(settings) == DEFAULT_REGION:
        return DEFAULT_ZONE
    if not re.fullmatch(rf"{prefix}-az[0-9]{{1,2}}", given):
        raise SettingsError("zone", given, f"the id of a zone of {region(settings)}, such as {prefix}-az1")
    return given


def check(settings: Settings, instance_type: str) -> None:
    """Raise UsageError for a region that is none or has no prices, and then for a zone that is not in it: with another
    region its zone will be another one, too."""
    short(settings)
    if not table.is_priced("aws", region(settings)):
        raise table.NoPrice("aws", region(settings), instance_type)
    zone(settings)


def check_offer(settings: Settings, instance_type: str, provider: aws.Provider) -> None:
    """Ask EC2 whether the zone has the type. Raises UsageError naming the zones that do."""
    offers = aws.ec2.get_instance_type_offerings(
        location_type="availability-zone-id",
        filters=[aws.ec2.GetInstanceTypeOfferingsFilterArgs(name="instance-type", values=[instance_type])],
        opts=asking(provider),
    )
    zones = sorted(set(offers.locations))
    if zone(settings) not in zones:
        there = f"set zone to one that does: {', '.join(zones)}" if zones else "nor does any other zone of the region"
        raise UsageError(f"zone = {zone(settings)!r}: does not offer {instance_type}; {there}")
