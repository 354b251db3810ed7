"""Where the data set and the checkpoints are kept beside the nodes: a storage account with one container."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import storage

from infra.azure.base import Base, account_name
from infra.azure.network import Network

CONTAINER = "data"


@dataclass(frozen=True)
class Data:
    account: storage.StorageAccount
    container: storage.BlobContainer

    @property
    def url(self) -> pulumi.Output[str]:
        """As fsspec's adlfs takes it."""
        return pulumi.Output.concat("abfs://", CONTAINER, "@", self.account.name, ".dfs.core.windows.net")


def declare(base: Base, net: Network) -> Data:
    """No public blobs, no keys: who comes in has an identity, TLS 1.2, and an address of the nodes' or the admin's."""
    stack = base.settings.stack
    account = storage.StorageAccount(
        "data",
        account_name=base.subscription.apply(lambda subscription: account_name(subscription, stack)),
        resource_group_name=base.group.name,
        location=base.location,
        kind="StorageV2",
        sku=storage.SkuArgs(name="Standard_LRS"),
        access_tier=storage.AccessTier.HOT,
        allow_blob_public_access=False,
        allow_shared_key_access=False,
        default_to_o_auth_authentication=True,
        allow_cross_tenant_replication=False,
        is_local_user_enabled=False,
        minimum_tls_version="TLS1_2",
        enable_https_traffic_only=True,
        network_rule_set=storage.NetworkRuleSetArgs(
            default_action=storage.DefaultAction.DENY,
            bypass="AzureServices",
            ip_rules=[
                storage.IPRuleArgs(i_p_address_or_range=rule) for rule in ip_rules(base.settings.cloud.admin_cidr)
            ],
            virtual_network_rules=[storage.VirtualNetworkRuleArgs(virtual_network_resource_id=net.subnet.id)],
        ),
        tags=base.tags,
        opts=base.opts(retain_on_delete=base.kept),
    )
    container = storage.BlobContainer(
        "container",
        container_name=CONTAINER,
        account_name=account.name,
        resource_group_name=base.group.name,
        public_access=storage.PublicAccess.NONE,
        opts=base.opts(retain_on_delete=base.kept),
    )
    return Data(account, container)


def ip_rules(admin: ipaddress.IPv4Network | None) -> list[str]:
    """The admin's network as a storage account takes it: a single address without its /32, a /31 as its two.

    A private network cannot be named there: its user works from the nodes, or through a public address.
    """
    if admin is None or admin.is_private:
        return []
    return [str(address) for address in admin] if admin.prefixlen > 30 else [str(admin)]
