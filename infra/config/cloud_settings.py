"""The settings that only clusters in a cloud have, as a part of infra.config.settings."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.config.keys import KEYS, value
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
    """Whether nodes of an older image are replaced."""


def read(raw: Mapping[str, str], stack: str, *, is_complete: bool) -> Cloud:
    """Validate the keys of the clouds. Raises SettingsError for the first bad one.

    Keys that every cluster in a cloud needs (those with an example) may be empty unless it `is_complete`.
    """
    fields: dict[str, Any] = {}
    for key, declared in KEYS.items():
        if declared.on in ("", "local"):
            continue
        name = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key)  # instanceType -> instance_type
        if key == "adminCidr":
            fields[name] = _admin(raw, stack, is_complete=is_complete)
        elif not declared.example:
            fields[name] = value(raw, key)
        elif re.fullmatch(declared.form, raw[key]) or (raw[key] == "" and not is_complete):
            fields[name] = raw[key]
        else:
            raise SettingsError(key, raw[key], _with_command(key, declared.allowed, declared.example, stack, raw))
    return Cloud(**fields)


def _admin(raw: Mapping[str, str], stack: str, *, is_complete: bool) -> ipaddress.IPv4Network | None:
    """The network for SSH. A network that is too large is refused, such as the whole world in any notation."""
    given = raw["adminCidr"]
    if not given and not is_complete:
        return None
    try:
        network = ipaddress.IPv4Network(given)
        allowed = f"a network of /{MIN_ADMIN_PREFIX} or smaller: SSH is for you alone"
    except ValueError:
        network, allowed = None, KEYS["adminCidr"].allowed
    if network is None or network.prefixlen < MIN_ADMIN_PREFIX:
        own = f'"$(curl -s {ADDRESS_ECHO})/32"'
        raise SettingsError("adminCidr", given, _with_command("adminCidr", allowed, own, stack, raw))
    return network


def _with_command(key: str, allowed: str, example: str, stack: str, raw: Mapping[str, str]) -> str:
    """What is allowed, which other keys are missing as well, and the command that sets this one."""
    others = [name for name, declared in KEYS.items() if declared.example and name != key and not raw[name]]
    missing = f" (also empty: {', '.join(others)})" if others else ""
    return f"{allowed}{missing}; set it: {set_key(key, example, stack)}"
