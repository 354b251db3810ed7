"""Declares every key of a stack once: default, allowed values, which clusters read it, description.

Pulumi.yaml and the README's table of keys repeat this (tests/infra/test_keys.py compares them).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from infra.config.kinds import AWS, CLOUDS, CLUSTERS
from infra.config.values import SettingsError

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_WORD = r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key; its type is that of its default."""

    default: str | int | bool
    help: str
    on: str = ""
    """Who reads it: "local", "clouds", or one cloud's title; empty: every cluster."""
    least: int = 0
    """Minimum of a whole number."""
    least_in_clouds: int | None = None
    """The minimum for a cluster in a cloud, if it differs."""
    most: int = 0
    choices: tuple[str, ...] = ()
    form: str = ""
    """Regular expression for the whole text."""
    allowed: str = ""
    """Description of the allowed texts, for messages."""
    example: str = ""
    """An example value, for a key without a default that every cluster in a cloud needs."""


KEYS = {
    "cluster": Key(default="local", choices=tuple(CLUSTERS), help="Kind of cluster"),
    "nodes": Key(default=3, least=1, most=64, help="Machines in the cluster, the head included"),
    "cpus": Key(default=1, least=1, most=1024, on="local", help="CPUs that a node may use; changed without a reboot"),
    "memoryMb": Key(
        default=2048,
        least=256,
        most=16 * 1024 * 1024,
        on="local",
        help="Memory that a node may use, in MiB; changed without a reboot",
    ),
    "cidr": Key(
        default="10.77.0.0/24",
        allowed="a private IPv4 network with an address for each node",
        help="The cluster's own network",
    ),
    "profile": Key(
        default="native",
        choices=("native", "ipex"),
        help="Software on the nodes: native is torch 2.13, ipex is torch 2.8 with Intel's extension",
    ),
    "collectives": Key(
        default="gloo",
        choices=("gloo", "ccl"),
        help="Library that the ranks talk through; ccl needs profile ipex and Intel's package index",
    ),
    "publicKey": Key(
        default="~/.ssh/id_ed25519.pub",
        allowed="the path of a public key file",
        help="Your public SSH key, the only key that opens the nodes",
    ),
    "image": Key(
        default="bake",
        allowed="bake, or the id of a baked image",
        help="bake makes the golden image when there is none yet; an id is one of `fab images`, ami-..., or a gallery "
        "version's",
    ),
    "maxHours": Key(
        default=0,
        most=24 * 31,
        least_in_clouds=1,
        help="Hours after its first boot at which a node ends by itself; 0: never, on local only",
    ),
    "idleMinutes": Key(
        default=0, most=24 * 60, help="Minutes without a job or a login after which a node ends by itself; 0: never"
    ),
    "region": Key(
        default="",
        on="clouds",
        form=_WORD,
        allowed=f"a region's name in small letters, such as {' or '.join(cloud.region for cloud in CLOUDS.values())}",
        help="Region of the cloud",
    ),
    "zone": Key(
        default="",
        on="clouds",
        form=_WORD,
        allowed=", or ".join(cloud.zone for cloud in CLOUDS.values()),
        help="The one availability zone of the nodes",
    ),
    "instanceType": Key(
        default="",
        on="clouds",
        form=r"[A-Za-z][A-Za-z0-9]*([._-][A-Za-z0-9]+){1,3}",
        allowed=f"an instance type such as {' or '.join(cloud.instance_type for cloud in CLOUDS.values())}",
        help="The nodes' machine type",
    ),
    "spot": Key(default=False, on="clouds", help="Spot nodes instead of nodes on demand"),
    "diskGb": Key(default=250, least=30, most=16 * 1024, on="clouds", help="Disk of a node, in GB"),
    "baseImage": Key(
        default="",
        on="clouds",
        form="|".join(cloud.base_image for cloud in CLOUDS.values()),
        allowed=f"an image: {', '.join(f'{cloud.base_image_form} on {cloud.title}' for cloud in CLOUDS.values())}",
        help="What the golden image is baked from",
    ),
    "publicNodes": Key(
        default="head",
        choices=("head", "all"),
        on="clouds",
        help="Nodes with a public address; those without one are behind a NAT gateway",
    ),
    "adminCidr": Key(
        default="",
        on="clouds",
        allowed="your own public address as an IPv4 network, 203.0.113.7/32 say; never everybody's",
        example="203.0.113.7/32",
        help="The network that SSH is opened to",
    ),
    "owner": Key(
        default="",
        on="clouds",
        form=r"[A-Za-z0-9][A-Za-z0-9.@_-]{0,62}",
        allowed="your name, as the tag of all that is made: letters, digits and .@_-",
        example="you",
        help="Whose cluster it is, a tag on everything of it",
    ),
    "alertEmail": Key(
        default="",
        on="clouds",
        form=r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+",
        allowed="the address that the budget's alarm goes to",
        example="you@example.org",
        help="Where the budget's alarm goes",
    ),
    "budgetUsd": Key(
        default=100, least=1, most=10_000_000, on="clouds", help="The budget of a month, in USD: an alarm, not a switch"
    ),
    "keepData": Key(default=False, on="clouds", help="Whether the bucket stays when the cluster is destroyed"),
    "flowLogs": Key(default=False, on="clouds", help="Whether the network's traffic is logged, at a price"),
    "monitoring": Key(
        default=False,
        on="clouds",
        help="Whether each node sends its CPU, memory and network to CloudWatch once a minute, at a price; Azure "
        "Monitor has them in any case, for nothing",
    ),
    "capacityReservation": Key(
        default="",
        on=AWS.title,
        form="cr-[0-9a-f]{17}|none",
        allowed=f"cr-... or none, on {AWS.title}",
        help="The EC2 capacity reservation that the nodes are put into; empty: `up` holds one for all nodes while it "
        "starts them; none: one node at a time",
    ),
    "replaceNodes": Key(default=False, on="clouds", help="Whether `up` replaces nodes of an older image or bootstrap"),
}


def integer(raw: Mapping[str, str], key: str, *, in_cloud: bool = False) -> int:
    """A key's whole number. Raises SettingsError if it is none, or out of range."""
    text, declared = raw[key].strip(), KEYS[key]
    least = declared.least_in_clouds if in_cloud and declared.least_in_clouds is not None else declared.least
    if not (_INTEGER.fullmatch(text) and text.isascii() and least <= int(text) <= declared.most):
        raise SettingsError(key, raw[key], f"a whole number from {least} to {declared.most}")
    return int(text)


def choice(raw: Mapping[str, str], key: str) -> str:
    """One of the key's words. Raises SettingsError for any other."""
    if raw[key] not in KEYS[key].choices:
        raise SettingsError(key, raw[key], f"one of {', '.join(KEYS[key].choices)}")
    return raw[key]


def boolean(raw: Mapping[str, str], key: str) -> bool:
    """A key's true or false. Raises SettingsError for anything else."""
    if raw[key] not in ("true", "false"):
        raise SettingsError(key, raw[key], "one of true, false")
    return raw[key] == "true"


def text(raw: Mapping[str, str], key: str) -> str:
    """A text of the key's form, or empty. Raises SettingsError for any other."""
    if raw[key] and not re.fullmatch(KEYS[key].form, raw[key]):
        raise SettingsError(key, raw[key], f"{KEYS[key].allowed}; or empty, for the cluster's default")
    return raw[key]
