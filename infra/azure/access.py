"""Who the nodes are: one identity, which may end the stack's own machines and use its container, and no more."""

from __future__ import annotations

import pulumi
from pulumi_azure_native import authorization, managedidentity

from infra.azure.base import Base, guid
from infra.azure.data import Data

BLOB_CONTRIBUTOR = "ba92f5b4-2d11-453d-a403-e96b0029c9fe"
"""Azure's own role Storage Blob Data Contributor: read, write and delete blobs."""
ENDS_MACHINES = ("Microsoft.Compute/virtualMachines/read", "Microsoft.Compute/virtualMachines/deallocate/action")
"""A role of our own: the narrowest of Azure's that may deallocate may start, restart and reconfigure as well."""


def declare(base: Base, data: Data) -> managedidentity.UserAssignedIdentity:
    identity = managedidentity.UserAssignedIdentity(
        "identity",
        resource_name_=base.name("identity"),
        resource_group_name=base.group.name,
        location=base.location,
        tags=base.tags,
        opts=base.opts(),
    )
    stack = base.settings.stack
    role = authorization.RoleDefinition(
        "role",
        role_definition_id=base.subscription.apply(lambda subscription: guid(subscription, stack, "role")),
        # Unique in the whole directory, so the subscription is part of it.
        role_name=base.subscription.apply(lambda subscription: f"{base.name('role')}-{guid(subscription, stack)[:8]}"),
        description=f"Deallocate the machines of the Trainyard stack {stack}",
        scope=base.group.id,
        assignable_scopes=[base.group.id],
        permissions=[authorization.PermissionArgs(actions=list(ENDS_MACHINES))],
        opts=base.opts(),
    )
    _assign(base, "may-end", identity, base.group.id, role.id)
    blobs = base.subscription.apply(
        lambda subscription: (
            f"/subscriptions/{subscription}/providers/Microsoft.Authorization/roleDefinitions/{BLOB_CONTRIBUTOR}"
        )
    )
    _assign(base, "may-store", identity, data.container.id, blobs)
    return identity


def _assign(
    base: Base,
    logical: str,
    identity: managedidentity.UserAssignedIdentity,
    scope: pulumi.Output[str],
    role: pulumi.Output[str],
) -> None:
    """The principal's type is said, or Azure would look for an identity that its directory may not have yet."""
    names = pulumi.Output.all(scope, identity.principal_id)
    authorization.RoleAssignment(
        logical,
        role_assignment_name=names.apply(lambda parts: guid(logical, *parts)),
        principal_id=identity.principal_id,
        principal_type="ServicePrincipal",
        role_definition_id=role,
        scope=scope,
        opts=base.opts(),
    )
