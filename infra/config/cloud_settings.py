"""The settings that only clusters in a cloud have, as a part of infra.config.settings."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from infra.config.keys import KEYS, boolean, choice, integer, text
from infra.config.values import ADDRESS_ECHO, SettingsError, set_key

MIN_ADMIN_PREFIX = 16
"""Shortest prefix of a network that may use SSH: as large as a university's, not a provider's."""


@dataclass(frozen=True)
class Cloud:
    """Settings of the clusters in a cloud. An empty text means the cluster's own default."""

    region: str
    zone: str
    """An availability zone: on AWS its id (use1-az4, the same place in every account), on Azure its number."""
    instance_type: str
    spot: bool
    disk_gb: int
    base_image: str
    """The image from which the golden one is baked."""
    public_nodes: str
    """`head`: the other nodes are behind a NAT gateway; `all`: each has a public address."""
    admin_cidr: ipaddress.IPv4Network | None
    """The network from which SSH is allowed; None only for a cluster that is not in a cloud."""
    owner: str
    alert_email: str
    budget_usd: int
    """US dollars per month. The budget only sends e-mail; it stops nothing."""
    keep_data: bool
    """Whether the bucket survives `destroy`."""
    flow_logs: bool
    monitoring: bool
    """Whether each node sends its CPU, memory and network use to the cloud's monitoring once a minute."""
    capacity_reservation: str
    """On AWS: `cr-...` to use that one; empty: `up` makes one while it starts all nodes; or `none`."""
    replace_nodes: bool
    """Whether nodes of an older image are replaced; otherwise they are left alone."""


def read(raw: Mapping[str, str], stack: str, *, in_cloud: bool) -> Cloud:
    """Validate the keys of the clouds. Raises SettingsError for the first bad one.

    Keys that every cluster in a cloud needs may be empty unless `in_cloud`.
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
    """The network for SSH. A network that is too large is refused, such as the whole world in any notation."""
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
