"""Declares every key of a stack once: default, allowed values, which clusters read it, description.

Pulumi.yaml and the README's table of keys repeat this (tests/infra/test_keys.py compares them).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from infra.config.kinds import AWS, CLOUDS, CLUSTERS
from infra.config.values import SettingsError

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_WORD = r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"


@dataclass(frozen=True)
class Key:
    """A key; its type is that of its default."""

    default: str | int | bool
    help: str
    _: KW_ONLY
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
    "cluster": Key("local", "Kind of cluster", choices=tuple(CLUSTERS)),
    "nodes": Key(3, "Machines in the cluster, the head included", least=1, most=64),
    "cpus": Key(1, "CPUs that a node may use; changed without a reboot", least=1, most=1024, on="local"),
    "memoryMb": Key(
        2048,
        "Memory that a node may use, in MiB; changed without a reboot",
        least=256,
        most=16 * 1024 * 1024,
        on="local",
    ),
    "scheduler": Key(
        "none",
        "Who runs the jobs: none is our own launcher over SSH; slurm is Debian's Slurm, kubernetes is Kubernetes with "
        "Kubeflow's training operator, both on nodes that share /fsx",
        choices=("none", "slurm", "kubernetes"),
        on="local",
    ),
    "cidr": Key(
        "10.77.0.0/24", "The cluster's own network", allowed="a private IPv4 network with an address for each node"
    ),
    "profile": Key(
        "native",
        "Software on the nodes: native is torch 2.13, ipex is torch 2.8 with Intel's extension, cuda is torch for "
        "NVIDIA's GPUs with driver, NCCL and EFA",
        choices=("native", "ipex", "cuda"),
    ),
    "collectives": Key(
        "gloo",
        "Library that the ranks talk through; ccl needs profile ipex and Intel's package index",
        choices=("gloo", "ccl"),
    ),
    "publicKey": Key(
        "~/.ssh/id_ed25519.pub",
        "Your public SSH key, the only key that opens the nodes",
        allowed="the path of a public key file",
    ),
    "image": Key(
        "bake",
        "bake makes the golden image when there is none yet; an id is one of `fab images`, ami-..., or a gallery "
        "version's",
        allowed="bake, or the id of a baked image",
    ),
    "maxHours": Key(
        0,
        "Hours after its first boot at which a node ends by itself; 0: never, on local only",
        most=24 * 31,
        least_in_clouds=1,
    ),
    "idleMinutes": Key(0, "Minutes without a job or a login after which a node ends by itself; 0: never", most=24 * 60),
    "region": Key(
        "",
        "Region of the cloud",
        on="clouds",
        form=_WORD,
        allowed=f"a region's name in small letters, such as {' or '.join(cloud.region for cloud in CLOUDS.values())}",
    ),
    "zone": Key(
        "",
        "The one availability zone of the nodes",
        on="clouds",
        form=_WORD,
        allowed=", or ".join(cloud.zone for cloud in CLOUDS.values()),
    ),
    "instanceType": Key(
        "",
        "The nodes' machine type",
        on="clouds",
        form=r"[A-Za-z][A-Za-z0-9]*([._-][A-Za-z0-9]+){1,3}",
        allowed=f"an instance type such as {' or '.join(cloud.instance_type for cloud in CLOUDS.values())}",
    ),
    "spot": Key(False, "Spot nodes instead of nodes on demand", on="clouds"),
    "diskGb": Key(250, "Disk of a node, in GB", least=30, most=16 * 1024, on="clouds"),
    "baseImage": Key(
        "",
        "What the golden image is baked from",
        on="clouds",
        form="|".join(cloud.base_image for cloud in CLOUDS.values()),
        allowed=f"an image: {', '.join(f'{cloud.base_image_form} on {cloud.title}' for cloud in CLOUDS.values())}",
    ),
    "publicNodes": Key(
        "head",
        "Nodes with a public address; those without one are behind a NAT gateway",
        choices=("head", "all"),
        on="clouds",
    ),
    "adminCidr": Key(
        "",
        "The network that SSH is opened to",
        on="clouds",
        allowed="your own public address as an IPv4 network, 203.0.113.7/32 say; never everybody's",
        example="203.0.113.7/32",
    ),
    "owner": Key(
        "",
        "Whose cluster it is, a tag on everything of it",
        on="clouds",
        form=r"[A-Za-z0-9][A-Za-z0-9.@_-]{0,62}",
        allowed="your name, as the tag of all that is made: letters, digits and .@_-",
        example="you",
    ),
    "alertEmail": Key(
        "",
        "Where the budget's alarm goes",
        on="clouds",
        form=r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+",
        allowed="the address that the budget's alarm goes to",
        example="you@example.org",
    ),
    "budgetUsd": Key(
        100, "The budget of a month, in USD: an alarm, not a switch", least=1, most=10_000_000, on="clouds"
    ),
    "keepData": Key(False, "Whether the bucket stays when the cluster is destroyed", on="clouds"),
    "flowLogs": Key(False, "Whether the network's traffic is logged, at a price", on="clouds"),
    "monitoring": Key(
        False,
        "Whether each node sends its CPU, memory and network to CloudWatch once a minute, at a price; "
        "without memory on aws-slurm and aws-eks; Azure Monitor has them in any case, for nothing",
        on="clouds",
    ),
    "capacityReservation": Key(
        "",
        "The EC2 capacity reservation that the nodes are put into; empty: `up` holds one for all nodes while it "
        "starts them; none: one node at a time",
        on=AWS.title,
        form="cr-[0-9a-f]{17}|none",
        allowed=f"cr-... or none, on {AWS.title}",
    ),
    "replaceNodes": Key(False, "Whether `up` replaces nodes of an older image or bootstrap", on="clouds"),
}


def value(raw: Mapping[str, str], key: str, *, in_cloud: bool = False) -> Any:
    """A key's value: a number, a boolean, one of its choices, or a text of its form or empty. Raises SettingsError."""
    text, declared = raw[key], KEYS[key]
    if isinstance(declared.default, bool):
        allowed = "one of true, false"
        if text in ("true", "false"):
            return text == "true"
    elif isinstance(declared.default, int):
        least = declared.least_in_clouds if in_cloud and declared.least_in_clouds is not None else declared.least
        allowed = f"a whole number from {least} to {declared.most}"
        digits = text.strip()
        if _INTEGER.fullmatch(digits) and digits.isascii() and least <= int(digits) <= declared.most:
            return int(digits)
    elif declared.choices:
        allowed = f"one of {', '.join(declared.choices)}"
        if text in declared.choices:
            return text
    else:
        allowed = f"{declared.allowed}; or empty, for the cluster's default"
        if not text or re.fullmatch(declared.form, text):
            return text
    raise SettingsError(key, text, allowed)
