"""Roles: the nodes' identity may deallocate the stack's machines and use its container; the operator may read blobs."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
from pulumi_azure_native import authorization, managedidentity

from infra.clouds.azure.data import Data
from infra.clouds.azure.names import Base, guid

BLOB_CONTRIBUTOR = "ba92f5b4-2d11-453d-a403-e96b0029c9fe"
"""Azure's own role Storage Blob Data Contributor: read, write and delete blobs."""
BLOB_READER = "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1"
"""Azure's own role Storage Blob Data Reader: list and read blobs."""
ASSIGNED = ("may-end", "may-store", "may-read", "may-log")
"""Logical names of the role assignments."""
ENDS_MACHINES = ("Microsoft.Compute/virtualMachines/read", "Microsoft.Compute/virtualMachines/deallocate/action")
"""Actions of the stack's own role: every built-in role that may deallocate may also start, restart and reconfigure."""


@dataclass(frozen=True)
class Access:
    """What must exist before a machine is made."""

    identity: pulumi.Output[str]
    """ARM id of the nodes' identity."""
    may_end: pulumi.Resource
    """Assignment that lets the identity deallocate machines. Machines depend on it: one made earlier could not stop
    itself, and would be billed until somebody notices."""


def declare_identity(base: Base, name: str) -> managedidentity.UserAssignedIdentity:
    """A user-assigned identity of the stack, without any role yet."""
    return managedidentity.UserAssignedIdentity(name, resource_name_=base.name(name), **base.common())


def declare(base: Base, data: Data) -> Access:
    """Declare the nodes' identity, the stack's own role, and who has which role."""
    identity = declare_identity(base, "identity")
    unique = base.unique
    role = authorization.RoleDefinition(
        "role",
        role_definition_id=base.subscription.apply(lambda subscription: role_guid(subscription, unique)),
        # A role's name is unique in the whole directory, so it includes the subscription.
        role_name=base.subscription.apply(lambda subscription: f"{base.name('role')}-{guid(subscription, unique)[:8]}"),
        description=f"Deallocate the machines of the Trainyard stack {base.settings.stack}",
        scope=base.group.id,
        assignable_scopes=[base.group.id],
        permissions=[authorization.PermissionArgs(actions=list(ENDS_MACHINES))],
        opts=base.opts(),
    )
    may_end = assign(base, "may-end", identity.principal_id, base.group.id, role.id)
    assign(base, "may-store", identity.principal_id, data.container.id, builtin(base, BLOB_CONTRIBUTOR))
    # Even a subscription's owner needs a data role to list blobs, as account keys are off. Without this one the audit
    # could not tell an empty container from a full one. Its scope is the account, because flow logs have their own
    # container. It is kept as long as the data is.
    reader = builtin(base, BLOB_READER)
    kept = base.opts(retain_on_delete=base.kept)
    assign(base, "may-read", base.operator, data.account.id, reader, base.operator_type, opts=kept)
    return Access(identity.id, may_end)


def role_guid(subscription: str, unique: str) -> str:
    """GUID of the stack's own role. `unique`: the stack's name with its id (naming.unique)."""
    return guid(subscription, unique, "role")


def assignment_guid(logical: str, scope: str, principal: str) -> str:
    """GUID of an assignment. Assignments have no tags: the audit knows ours by it. Azure varies the case of ids."""
    return guid(logical, scope.lower(), principal.lower())


def builtin(base: Base, role: str) -> pulumi.Output[str]:
    """The id of an Azure built-in role, given its GUID."""
    definitions = "/providers/Microsoft.Authorization/roleDefinitions/"
    return pulumi.Output.concat("/subscriptions/", base.subscription, definitions, role)


def assign(
    base: Base,
    logical: str,
    principal: pulumi.Output[str],
    scope: pulumi.Output[str],
    role: pulumi.Output[str],
    type_: pulumi.Input[str] = "ServicePrincipal",
    opts: pulumi.ResourceOptions | None = None,
) -> authorization.RoleAssignment:
    """Assign a role on a scope. `logical` is one of ASSIGNED: the audit recognises the assignment by it.

    With an explicit type Azure does not look a new identity up in its directory, where it may not be yet.
    """
    return authorization.RoleAssignment(
        logical,
        role_assignment_name=pulumi.Output.all(scope, principal).apply(lambda ids: assignment_guid(logical, *ids)),
        principal_id=principal,
        principal_type=type_,
        role_definition_id=role,
        scope=scope,
        opts=opts or base.opts(),
    )
