"""What only the clusters in a cloud have: the part of infra.config.settings that `local` does without."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from infra.config.keys import KEYS, boolean, choice, integer, text
from infra.config.values import ADDRESS_ECHO, SettingsError, set_key

MIN_ADMIN_PREFIX = 16
"""The largest network that SSH is opened to: a university's, not a provider's."""


@dataclass(frozen=True)
class Cloud:
    """What the clusters of the clouds have in common. Empty text: the cluster's own default."""

    region: str
    zone: str
    """One availability zone: on AWS its id (use1-az4, the same place in every account), on Azure its number."""
    instance_type: str
    spot: bool
    disk_gb: int
    base_image: str
    """The image that the golden one is baked from."""
    public_nodes: str
    """`head`: the others are behind a NAT gateway; `all`: each has a public address."""
    admin_cidr: ipaddress.IPv4Network | None
    """From where SSH is let in; None only where the cluster is no cloud's."""
    owner: str
    alert_email: str
    budget_usd: int
    """A month; an alarm, not a switch."""
    keep_data: bool
    """Whether the bucket outlives the cluster."""
    flow_logs: bool
    monitoring: bool
    """Whether each node sends its CPU, memory and network to the cloud's own monitoring once a minute."""
    capacity_reservation: str
    """On AWS: `cr-...`, which the nodes are put into; empty: `up` holds one while it starts them all; or `none`."""
    replace_nodes: bool
    """Whether nodes of an older image are replaced; they are left alone otherwise."""


def read(raw: Mapping[str, str], stack: str, *, in_cloud: bool) -> Cloud:
    """Validate the keys of the clouds. Raises SettingsError for the first that cannot be used.

    What every cluster in a cloud must set may be empty for one that is not `in_cloud`.
    """
    return Cloud(
        region=text(raw, "region"),
        zone=text(raw, "zone"),
        instance_type=text(raw, "instanceType"),
        spot=boolean(raw, "spot"),
        disk_gb=integer(raw, "diskGb"),
        base_image=text(raw, "baseImage"),
        public_nodes=choice(raw, "publicNodes"),
        admin_cidr=_admin(raw["adminCidr"], stack, in_cloud=in_cloud),
        owner=_needed(raw, "owner", stack, in_cloud=in_cloud),
        alert_email=_needed(raw, "alertEmail", stack, in_cloud=in_cloud),
        budget_usd=integer(raw, "budgetUsd"),
        keep_data=boolean(raw, "keepData"),
        flow_logs=boolean(raw, "flowLogs"),
        monitoring=boolean(raw, "monitoring"),
        capacity_reservation=text(raw, "capacityReservation"),
        replace_nodes=boolean(raw, "replaceNodes"),
    )


def _needed(raw: Mapping[str, str], key: str, stack: str, *, in_cloud: bool) -> str:
    if not (re.fullmatch(KEYS[key].form, raw[key]) or (raw[key] == "" and not in_cloud)):
        raise SettingsError(key, raw[key], _with_command(key, KEYS[key].allowed, KEYS[key].example, stack))
    return raw[key]


def _admin(given: str, stack: str, *, in_cloud: bool) -> ipaddress.IPv4Network | None:
    """Where SSH may come from. The whole world is refused, in every way it can be written."""
    if not given and not in_cloud:
        return None
    try:
        network = ipaddress.IPv4Network(given)
        allowed = f"a network of /{MIN_ADMIN_PREFIX} or smaller: SSH is for you alone"
    except ValueError:
        network, allowed = None, KEYS["adminCidr"].allowed
    if network is None or network.prefixlen < MIN_ADMIN_PREFIX:
        own = f'"$(curl -s {ADDRESS_ECHO})/32"'
        raise SettingsError("adminCidr", given, _with_command("adminCidr", allowed, own, stack))
    return network


def _with_command(key: str, allowed: str, value: str, stack: str) -> str:
    return f"{allowed}; set it: {set_key(key, value, stack)}"
