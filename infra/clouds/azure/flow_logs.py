"""Flow logs of the network, written into the stack's storage account by an identity with no other rights."""

from __future__ import annotations

from pulumi_azure_native import network

from infra.clouds.azure import access
from infra.clouds.azure.data import Data
from infra.clouds.azure.names import Base
from infra.clouds.azure.network import Network


def declare(base: Base, net: Network, data: Data) -> None:
    """Log the VNet's traffic. The account takes no keys, so Network Watcher gets its own identity; with the nodes' one,
    the nodes could change the logs. Azure itself makes one Network Watcher per region.
    """
    identity = access.declare_identity(base, "flow-logs-identity")
    # Its scope is the account, as the container does not exist before the first log.
    contributor = access.builtin(base, access.BLOB_CONTRIBUTOR)
    may_log = access.assign(base, "may-log", identity.principal_id, data.account.id, contributor)
    common = {**base.common(depends_on=[may_log]), "resource_group_name": "NetworkWatcherRG"}
    network.FlowLog(
        "flow-logs",
        flow_log_name=f"trainyard-{base.unique}-flow-logs",  # unique, as Azure's group has other stacks' logs too
        network_watcher_name=f"NetworkWatcher_{base.location}",
        target_resource_id=net.vnet.id,
        storage_id=data.account.id,
        identity=network.ManagedServiceIdentityArgs(
            type=network.ResourceIdentityType.USER_ASSIGNED, user_assigned_identities=[identity.id]
        ),
        enabled=True,
        format=network.FlowLogFormatParametersArgs(type="JSON", version=2),
        # Off: otherwise Network Watcher replaces the account's lifecycle policy (data.py), which removes old logs too.
        retention_policy=network.RetentionPolicyParametersArgs(days=0, enabled=False),
        **common,
    )
