"""The network of an EKS cluster: one zone for the nodes with GPUs, and a second, as the control plane wants two.

    first half        private, in the stack's zone: nodes, pods and the file system
    third quarter     private, in the second zone: the control plane's interfaces, one of the system nodes
    last quarter      public, in the stack's zone: the NAT gateway

Pods have addresses of the network, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network

import pulumi
import pulumi_aws as aws

from infra.clouds.aws import network
from infra.clouds.aws.names import after, asking, region
from infra.clouds.aws.network import Network, Place
from infra.clouds.aws.zones import zone
from infra.config.settings import Settings
from infra.config.values import SettingsError
from infra.errors import UsageError

ADDRESSES = 16
"""For each node with GPUs and its pods: the node's own, a job's, the device plugin's, and some held in reserve."""
OTHERS = 40
"""For the system nodes with their pods, the control plane and the file system."""
WITHOUT_EKS = ("use1-az3", "usw1-az2", "cac1-az3")
"""Zones in which EKS puts no control plane: https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html"""


@dataclass(frozen=True)
class Ranges:
    """The subnets' address ranges."""

    private: IPv4Network
    second: IPv4Network
    public: IPv4Network


def plan(settings: Settings) -> Ranges:
    """Divide the network. Raises SettingsError if AWS does not accept its size, or nodes and pods do not fit."""
    cidr = settings.cidr
    if not 16 <= cidr.prefixlen <= 24:
        raise SettingsError(
            "cidr", str(cidr), "a network of /16 to /24 on aws-eks, as pods have addresses of it as well"
        )
    private, rest = cidr.subnets()
    second, public = rest.subnets()
    needed = OTHERS + ADDRESSES * settings.nodes
    if needed > private.num_addresses:
        allowed = f"a network with room for {settings.nodes} nodes and their pods, {needed} addresses in its first half"
        raise SettingsError("cidr", str(cidr), f"{allowed}; {private} has {private.num_addresses}")
    return Ranges(private, second, public)


def check(settings: Settings) -> None:
    """Raise SettingsError for a zone without EKS, or a network that is too small."""
    plan(settings)
    if zone(settings) in WITHOUT_EKS:
        raise SettingsError("zone", zone(settings), "another zone: EKS has no control plane in it")


def other_zone(settings: Settings, provider: aws.Provider) -> str:
    """Id of the second zone: the first of the region's, by name. Raises UsageError for a region with one zone."""
    found = aws.get_availability_zones(
        state="available",
        filters=[aws.GetAvailabilityZonesFilterArgs(name="opt-in-status", values=["opt-in-not-required"])],
        opts=asking(provider),
    )
    others = sorted(set(found.zone_ids) - {zone(settings), *WITHOUT_EKS})
    if not others:
        raise UsageError(f"region = {region(settings)!r}: has no second zone for EKS's control plane")
    return others[0]


def declare(settings: Settings, second: str, opts: pulumi.ResourceOptions) -> Network:
    """`second`: id of the second zone."""
    subnets, where = plan(settings), zone(settings)
    vpc, outside, way = network.of_the_internet(settings, opts)
    public, joined = network.subnet_of(settings, vpc, Place("public", subnets.public, where), outside, opts)
    inside, through = network.behind_nat(settings, vpc, public, after(opts, way, joined))
    private, first = network.subnet_of(settings, vpc, Place("private", subnets.private, where), inside, opts)
    # A zone that AWS adds would else move the subnet, and with it the cluster.
    kept = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(ignore_changes=["availability_zone_id"]))
    other, last = network.subnet_of(settings, vpc, Place("second", subnets.second, second), inside, kept)
    network.store(settings, vpc, [outside.id, inside.id], opts)
    return Network(vpc, public, private, None, [way, joined, through, first, last], other)
