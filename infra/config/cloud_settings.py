"""What the clusters of the clouds have in common: the part of infra.config.settings that `local` does without."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from infra.config.values import SettingsError, boolean, choice, integer, set_key

MIN_ADMIN_PREFIX = 16
"""The largest network that SSH is opened to: a university's, not a provider's."""
_WORD = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9]*([._-][A-Za-z0-9]+){1,3}")
_BASE = re.compile(r"ami-[0-9a-f]{8,17}|[A-Za-z0-9._-]+(:[A-Za-z0-9._-]+){3}")
_RESERVATION = re.compile(r"cr-[0-9a-f]{17}|none")
_NEEDED = {
    "owner": (
        re.compile(r"[A-Za-z0-9][A-Za-z0-9.@_-]{0,62}"),
        "your name, as the tag of all that is made: letters, digits and .@_-",
    ),
    "alertEmail": (
        re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+"),
        "the address that the budget's alarm goes to",
    ),
}
_EXAMPLES = {
    "adminCidr": '"$(curl -s https://checkip.amazonaws.com)/32"',
    "owner": "you",
    "alertEmail": "you@example.org",
}
"""What has no default in a cloud, as it is set."""


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


def read(raw: Mapping[str, str], cluster: str, stack: str) -> Cloud:
    """Validate the keys of the clouds. Raises SettingsError for the first that cannot be used."""
    return Cloud(
        region=_word(raw, "region", _WORD, "a region's name in small letters, such as us-east-1 or eastus"),
        zone=_word(raw, "zone", _WORD, "an AWS zone's id such as use1-az4, or an Azure zone's number"),
        instance_type=_word(raw, "instanceType", _TYPE, "an instance type such as m7i.8xlarge or Standard_D32s_v6"),
        spot=boolean(raw, "spot"),
        disk_gb=integer(raw, "diskGb", 30, 16 * 1024),
        base_image=_word(raw, "baseImage", _BASE, "an image: ami-... on AWS, publisher:offer:sku:version on Azure"),
        public_nodes=choice(raw, "publicNodes", ("head", "all")),
        admin_cidr=_admin(raw["adminCidr"], cluster, stack),
        owner=_needed(raw, "owner", cluster, stack),
        alert_email=_needed(raw, "alertEmail", cluster, stack),
        budget_usd=integer(raw, "budgetUsd", 1, 10_000_000),
        keep_data=boolean(raw, "keepData"),
        flow_logs=boolean(raw, "flowLogs"),
        monitoring=boolean(raw, "monitoring"),
        capacity_reservation=_word(raw, "capacityReservation", _RESERVATION, "cr-... or none, on AWS"),
        replace_nodes=boolean(raw, "replaceNodes"),
    )


def _word(raw: Mapping[str, str], key: str, form: re.Pattern[str], allowed: str) -> str:
    if raw[key] and not form.fullmatch(raw[key]):
        raise SettingsError(key, raw[key], f"{allowed}; or empty, for the cluster's default")
    return raw[key]


def _needed(raw: Mapping[str, str], key: str, cluster: str, stack: str) -> str:
    form, allowed = _NEEDED[key]
    if not (form.fullmatch(raw[key]) or (raw[key] == "" and cluster == "local")):
        raise SettingsError(key, raw[key], _with_command(allowed, key, stack))
    return raw[key]


def _admin(text: str, cluster: str, stack: str) -> ipaddress.IPv4Network | None:
    """Where SSH may come from. The whole world is refused, in every way it can be written."""
    if not text and cluster == "local":
        return None
    try:
        network = ipaddress.IPv4Network(text)
        allowed = f"a network of /{MIN_ADMIN_PREFIX} or smaller: SSH is for you alone"
    except ValueError:
        network, allowed = None, "your own public address as an IPv4 network, 203.0.113.7/32 say; never everybody's"
    if network is None or network.prefixlen < MIN_ADMIN_PREFIX:
        raise SettingsError("adminCidr", text, _with_command(allowed, "adminCidr", stack))
    return network


def _with_command(allowed: str, key: str, stack: str) -> str:
    return f"{allowed}; set it: {set_key(key, _EXAMPLES[key], stack)}"
