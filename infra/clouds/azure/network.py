"""The network: a VNet with the cluster's subnet, its firewall rules, and its outbound route."""

from __future__ import annotations

from dataclasses import dataclass

from pulumi_azure_native import network

from infra.clouds.azure.names import Base
from infra.config.settings import Settings

VNET_PREFIX = 16


@dataclass(frozen=True)
class Network:
    """What machines are attached to."""

    vnet: network.VirtualNetwork
    subnet: network.Subnet


def has_nat_gateway(settings: Settings) -> bool:
    """Whether a NAT gateway is needed: it is for nodes without a public address. The head always has one."""
    return settings.cloud.public_nodes == "head" and settings.nodes > 1


def declare(base: Base) -> Network:
    """Declare the VNet, the firewall, and the subnet with its way out."""
    cidr = base.settings.cidr
    around = cidr.supernet(new_prefix=min(VNET_PREFIX, cidr.prefixlen))  # or the subnet itself, if it is that large
    vnet = network.VirtualNetwork(
        "network",
        virtual_network_name=base.name("network"),
        address_space=network.AddressSpaceArgs(address_prefixes=[str(around)]),
        **base.common(),
    )
    group = _security_group(base)
    gateway = _nat_gateway(base) if has_nat_gateway(base.settings) else None
    subnet = network.Subnet(
        "subnet",
        subnet_name=base.name("subnet"),
        resource_group_name=base.group.name,
        virtual_network_name=vnet.name,
        address_prefix=str(cidr),
        network_security_group=network.NetworkSecurityGroupArgs(id=group.id),
        nat_gateway=network.SubResourceArgs(id=gateway.id) if gateway else None,
        # Outbound access is explicit: the NAT gateway, or each machine's own address.
        default_outbound_access=False,
        service_endpoints=[network.ServiceEndpointPropertiesFormatArgs(service="Microsoft.Storage")],
        opts=base.opts(),
    )
    return Network(vnet, subnet)


def address(base: Base, logical: str) -> network.PublicIPAddress:
    """A static public address. Standard SKU: Basic was retired in 2025, and let all traffic in."""
    return network.PublicIPAddress(
        logical,
        public_ip_address_name=base.name(logical),
        sku=network.PublicIPAddressSkuArgs(name="Standard"),
        public_ip_allocation_method="Static",
        public_ip_address_version="IPv4",
        **base.common(),
    )


def _nat_gateway(base: Base) -> network.NatGateway:
    out = address(base, "nat-address")
    return network.NatGateway(
        "nat",
        nat_gateway_name=base.name("nat"),
        sku=network.NatGatewaySkuArgs(name="Standard"),
        public_ip_addresses=[network.SubResourceArgs(id=out.id)],
        **base.common(),
    )


def _security_group(base: Base) -> network.NetworkSecurityGroup:
    """Allow SSH from the admin's network and all traffic among the nodes; deny everything else inbound.

    The last rule overrides Azure's default rules, which let in the whole VNet and the load balancer.
    """
    subnet, admin = str(base.settings.cidr), str(base.settings.cloud.admin_cidr)
    return network.NetworkSecurityGroup(
        "security",
        network_security_group_name=base.name("security"),
        security_rules=[
            _rule("ssh-from-admin", 100, "SSH from the admin's network alone", "Tcp", admin, subnet, "22"),
            _rule("among-nodes", 110, "Everything from one node to another", "*", subnet, subnet, "*"),
            _rule("nothing-else", 4096, "Nothing else comes in", "*", "*", "*", "*", access="Deny"),
        ],
        **base.common(),
    )


def _rule(
    name: str, priority: int, why: str, protocol: str, source: str, target: str, port: str, *, access: str = "Allow"
) -> network.SecurityRuleArgs:
    return network.SecurityRuleArgs(
        name=name,
        description=why,
        priority=priority,
        direction="Inbound",
        access=access,
        protocol=protocol,
        source_address_prefix=source,
        source_port_range="*",
        destination_address_prefix=target,
        destination_port_range=port,
    )
