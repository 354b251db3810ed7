"""Who may do what: the nodes' one identity ends the stack's own machines and uses its container, the operator reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_azure_native import authorization, managedidentity

from infra.clouds.azure.data import Data
from infra.clouds.azure.names import Base, guid

BLOB_CONTRIBUTOR = "ba92f5b4-2d11-453d-a403-e96b0029c9fe"
"""Azure's own role Storage Blob Data Contributor: read, write and delete blobs."""
BLOB_READER = "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1"
"""Azure's own role Storage Blob Data Reader: list and read blobs."""
ASSIGNED = ("may-end", "may-store", "may-read", "may-log")
"""The assignments, by their names in the program."""
ENDS_MACHINES = ("Microsoft.Compute/virtualMachines/read", "Microsoft.Compute/virtualMachines/deallocate/action")
"""A role of our own: the narrowest of Azure's that may deallocate may start, restart and reconfigure as well."""


@dataclass(frozen=True)
class Access:
    """What a machine of the stack needs before it may be there."""

    identity: pulumi.Output[str]
    """The id of the nodes' identity."""
    may_end: pulumi.Resource
    """The right of that identity to deallocate machines. A machine that is made without it could not end itself, and
    would be billed until somebody finds it."""


def declare_identity(base: Base, name: str) -> managedidentity.UserAssignedIdentity:
    """An identity of the stack's own, that rights are then given to."""
    return managedidentity.UserAssignedIdentity(
        name,
        resource_name_=base.name(name),
        resource_group_name=base.group.name,
        location=base.location,
        tags=base.tags,
        opts=base.opts(),
    )


def declare(base: Base, data: Data) -> Access:
    identity = declare_identity(base, "identity")
    unique = base.unique
    role = authorization.RoleDefinition(
        "role",
        role_definition_id=base.subscription.apply(lambda subscription: role_guid(subscription, unique)),
        # Unique in the whole directory, so the subscription is part of it.
        role_name=base.subscription.apply(lambda subscription: f"{base.name('role')}-{guid(subscription, unique)[:8]}"),
        description=f"Deallocate the machines of the Trainyard stack {base.settings.stack}",
        scope=base.group.id,
        assignable_scopes=[base.group.id],
        permissions=[authorization.PermissionArgs(actions=list(ENDS_MACHINES))],
        opts=base.opts(),
    )
    # Its type is said, or Azure would look for an identity that its directory may not have yet.
    nodes = Principal(identity.principal_id, "ServicePrincipal")
    operator = Principal(base.operator, base.operator_type)
    may_end = assign(base, "may-end", nodes, base.group.id, role.id)
    assign(base, "may-store", nodes, data.container.id, builtin(base, BLOB_CONTRIBUTOR))
    # Whoever owns a subscription may still not list its blobs: that needs a right to data, and keys are off. Without it
    # the audit could not tell an empty container from a full one. On the account, as flow logs have a container of
    # their own. It stays with data that is kept, and goes with the account.
    assign(base, "may-read", operator, data.account.id, builtin(base, BLOB_READER), retain_on_delete=base.kept)
    return Access(identity.id, may_end)


@dataclass(frozen=True)
class Principal:
    """A user or application of the directory."""

    id: pulumi.Output[str]
    type: pulumi.Input[str]


def role_guid(subscription: str, unique: str) -> str:
    """The name of the stack's own role, by the stack's name with its id."""
    return guid(subscription, unique, "role")


def assignment_guid(logical: str, scope: str, principal: str) -> str:
    """The name of an assignment: it has no tag, and is known as ours by this. Azure's capitals vary."""
    return guid(logical, scope.lower(), principal.lower())


def builtin(base: Base, role: str) -> pulumi.Output[str]:
    """The id of one of Azure's own roles."""
    return base.subscription.apply(
        lambda subscription: f"/subscriptions/{subscription}/providers/Microsoft.Authorization/roleDefinitions/{role}"
    )


def assign(
    base: Base, logical: str, who: Principal, scope: pulumi.Output[str], role: pulumi.Output[str], **more: Any
) -> authorization.RoleAssignment:
    """Give a role on a scope. `logical` is one of ASSIGNED: by it the audit knows the assignment as the stack's."""
    names = pulumi.Output.all(scope, who.id)
    return authorization.RoleAssignment(
        logical,
        role_assignment_name=names.apply(lambda parts: assignment_guid(logical, *parts)),
        principal_id=who.id,
        principal_type=who.type,
        role_definition_id=role,
        scope=scope,
        opts=base.opts(**more),
    )
