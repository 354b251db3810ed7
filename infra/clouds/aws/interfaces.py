"""The network interfaces of a node with EFA: one on each network card, and the public address of one with several."""

from __future__ import annotations

from typing import Any

import pulumi
import pulumi_aws as aws

from infra.clouds.aws import machine_types
from infra.clouds.aws.foundation import Ground
from infra.clouds.aws.names import titled
from infra.clouds.aws.network import address, is_public
from infra.config.settings import Settings


def of(settings: Settings, index: int, ground: Ground) -> list[aws.ec2.LaunchTemplateNetworkInterfaceArgs]:
    """The interfaces of node `index`; empty for a type without EFA, whose one interface EC2 makes by itself.

    The first is EFA with an ordinary interface (efa), which has the node's address; each further card has EFA alone
    (efa-only), which has none, at device index 1.
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html
    """
    cards = machine_types.of(settings).efa_cards
    if not cards:
        return []
    subnet = ground.network.public if is_public(settings, index) else ground.network.private
    assert subnet is not None  # a private subnet exists whenever a node is not public
    every = {"subnet_id": subnet.id, "security_groups": [ground.security.nodes.id]}
    own = str(is_public(settings, index)).lower() if cards == 1 else None
    # EC2 refuses to say anything about a public address with several interfaces.
    return on_cards(cards, every, {"private_ip_address": address(settings, index), "associate_public_ip_address": own})


def on_cards(
    cards: int, every: dict[str, Any], first: dict[str, Any] | None = None
) -> list[aws.ec2.LaunchTemplateNetworkInterfaceArgs]:
    """An interface on each of `cards` network cards, with the properties `every`; the first has those of `first`."""

    def interface(card: int, type_: str, **own: Any) -> aws.ec2.LaunchTemplateNetworkInterfaceArgs:
        return aws.ec2.LaunchTemplateNetworkInterfaceArgs(
            network_card_index=card,
            device_index=min(card, 1),
            interface_type=type_,
            delete_on_termination="true",
            **every,
            **own,
        )

    further = [interface(card, "efa-only") for card in range(1, cards)]
    return [interface(0, "efa", **(first or {})), *further]


def public_address(
    settings: Settings, index: int, called: str, node: aws.ec2.Instance, opts: pulumi.ResourceOptions
) -> aws.ec2.EipAssociation | None:
    """An Elastic IP for a public node with several interfaces, as EC2 gives such a one no public address by itself."""
    if machine_types.of(settings).efa_cards < 2 or not is_public(settings, index):
        return None
    made = aws.ec2.Eip(f"{called}-address", domain="vpc", tags=titled(settings, called), opts=opts)
    return aws.ec2.EipAssociation(
        f"{called}-addressed",
        allocation_id=made.id,
        network_interface_id=node.primary_network_interface_id,
        opts=opts,
    )
