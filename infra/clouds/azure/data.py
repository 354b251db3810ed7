"""The storage account and container that hold the data set and the checkpoints."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import storage

from infra.clouds.azure.names import Base, account_name, group_name
from infra.clouds.azure.network import Network
from infra.config.settings import PRIVATE

CONTAINER = "data"
FLOW_LOG_CONTAINER = "insights-logs-flowlogflowevent"
"""Network Watcher makes this container when flow logs are on, and writes one blob an hour for each interface."""
FLOW_LOG_DAYS = 30
KEPT_DAYS = 7
"""Overwritten and deleted blobs can be restored for so many days, as in an AWS stack's bucket."""
VERSION_DAYS = 1
"""An old version is deleted so many days after it was written, and can then be restored for KEPT_DAYS more. Azure
counts from when the version was written, not from when it was replaced, so a longer time would not help: the version of
a week-old checkpoint that is deleted now would go tonight anyway."""


@dataclass(frozen=True)
class Data:
    """The storage account and its container."""

    account: storage.StorageAccount
    container: storage.BlobContainer

    @property
    def url(self) -> pulumi.Output[str]:
        """The container's URL for fsspec's adlfs."""
        return pulumi.Output.concat("abfs://", CONTAINER, "@", self.account.name, ".dfs.core.windows.net")


def declare(base: Base, net: Network) -> Data:
    """The account takes no public blobs and no keys: access needs an identity, TLS 1.2, and an address of the nodes or
    the admin. What a node overwrites or deletes can be restored for a week: its role may delete blobs, but no versions.
    """
    unique = base.unique
    admin = ip_rules(base.settings.cloud.admin_cidr)
    account = storage.StorageAccount(
        "data",
        account_name=base.subscription.apply(lambda subscription: account_name(subscription, unique)),
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
            ip_rules=[storage.IPRuleArgs(i_p_address_or_range=rule) for rule in admin],
            virtual_network_rules=[storage.VirtualNetworkRuleArgs(virtual_network_resource_id=_subnet_id(base, net))],
        ),
        **base.common(retain_on_delete=base.kept),
    )
    container = storage.BlobContainer(
        "container",
        container_name=CONTAINER,
        account_name=account.name,
        resource_group_name=base.group.name,
        public_access=storage.PublicAccess.NONE,
        opts=base.opts(retain_on_delete=base.kept),
    )
    _limit_retention(base, account)
    return Data(account, container)


def _limit_retention(base: Base, account: storage.StorageAccount) -> None:
    """Keep old versions and deleted blobs for some days only: they are billed like other blobs."""
    service = storage.BlobServiceProperties(
        "blobs",
        blob_services_name="default",
        account_name=account.name,
        resource_group_name=base.group.name,
        is_versioning_enabled=True,
        delete_retention_policy=storage.DeleteRetentionPolicyArgs(enabled=True, days=KEPT_DAYS),
        container_delete_retention_policy=storage.DeleteRetentionPolicyArgs(enabled=True, days=KEPT_DAYS),
        opts=base.opts(retain_on_delete=base.kept),
    )
    old_version = storage.DateAfterCreationArgs(days_after_creation_greater_than=VERSION_DAYS)
    old_log = storage.DateAfterModificationArgs(days_after_modification_greater_than=FLOW_LOG_DAYS)
    versions = storage.ManagementPolicyActionArgs(version=storage.ManagementPolicyVersionArgs(delete=old_version))
    logs = storage.ManagementPolicyActionArgs(base_blob=storage.ManagementPolicyBaseBlobArgs(delete=old_log))
    rules = [_rule("old-versions", versions)]
    if base.settings.cloud.flow_logs:
        rules.append(_rule("old-flow-logs", logs, prefix_match=[f"{FLOW_LOG_CONTAINER}/"]))
    storage.ManagementPolicy(
        "tidy",
        management_policy_name="default",
        account_name=account.name,
        resource_group_name=base.group.name,
        policy=storage.ManagementPolicySchemaArgs(rules=rules),
        opts=base.opts(depends_on=[service], retain_on_delete=base.kept),
    )


def _rule(
    name: str, actions: storage.ManagementPolicyActionArgs, prefix_match: list[str] | None = None
) -> storage.ManagementPolicyRuleArgs:
    filters = storage.ManagementPolicyFilterArgs(blob_types=["blockBlob"], prefix_match=prefix_match)
    definition = storage.ManagementPolicyDefinitionArgs(actions=actions, filters=filters)
    return storage.ManagementPolicyRuleArgs(enabled=True, name=name, type="Lifecycle", definition=definition)


def _subnet_id(base: Base, net: Network) -> pulumi.Output[str]:
    """The subnet's id, once the subnet is made, but without a dependency of the account on it in Pulumi's state.

    `pulumi destroy --exclude` of the account keeps all that it depends on: with the subnet that would be the NAT
    gateway and its address, which cost. Azure itself requires only that the subnet is made first (it checks the service
    endpoint). When the subnet is deleted, Azure removes it from the account's rules, and the account still works for
    the admin's network. The next `up --refresh` restores the rule with the new subnet.
    """
    subscription = base.subscription.future()

    async def waited() -> str:
        # Unknown in a preview before the subnet is made: then use the id that it will have.
        own = f"virtualNetworks/{base.name('network')}/subnets/{base.name('subnet')}"
        group = f"/subscriptions/{await subscription}/resourceGroups/{group_name(base.unique)}"
        return await net.subnet.id.future() or f"{group}/providers/Microsoft.Network/{own}"

    return pulumi.Output.from_input(waited())


def ip_rules(admin: ipaddress.IPv4Network | None) -> list[str]:
    """The admin's network in a storage account's form: a single address without /32, a /31 as two addresses.

    Empty for a private network, which Azure refuses there: its users work from the nodes or a public address.
    """
    if admin is None or any(admin.subnet_of(private) for private in PRIVATE):
        return []
    return [str(address) for address in admin] if admin.prefixlen > 30 else [str(admin)]
