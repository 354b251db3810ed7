"""Resources that have no tags and are in no resource listing: role assignments, the stack's own role, the budget.

They are deleted with their resource group, except for the role: it outlives the group, and the next `up` then fails
because a role of that name exists. All are recognised by the names that the program gives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from infra.clouds import naming
from infra.clouds.azure.access import ASSIGNED, assignment_guid, role_guid
from infra.clouds.azure.arm import Arm, ArmError
from infra.clouds.azure.names import group_name, name
from infra.clouds.live_resource import LiveResource
from infra.state.ownership import Claim

ASSIGNMENT, ROLE, BUDGET = "role assignment", "role definition", "budget"
VERSIONS = {ASSIGNMENT: "2022-04-01", ROLE: "2022-05-01-preview", BUDGET: "2024-08-01"}
"""API versions that pulumi-azure-native 3.29 uses, in the order of removal: a role that is still assigned cannot be
deleted."""


def find(arm: Arm, claim: Claim, groups: list[dict[str, Any]]) -> list[LiveResource]:
    """Those of the user's own stack, in its `groups` and outside. What cannot be read is returned as unseen."""
    # Also without an id: earlier versions had names without one.
    uniques = sorted({naming.unique(claim.stack, stack_id) for stack_id in {"", *claim.ids}})
    looks = [(ASSIGNMENT, partial(_assignments, arm, uniques, listed["id"].lower())) for listed in groups]
    for unique in uniques:
        # Looked up by name, as the role may exist without the group.
        group = f"{arm.subscription}/resourceGroups/{group_name(unique)}"
        looks += [(ROLE, partial(_role, arm, unique, group)), (BUDGET, partial(_budget, arm, claim.stack, group))]
    found: list[LiveResource] = []
    for kind, look in looks:
        try:
            found += look()
        except ArmError as error:
            found.append(LiveResource(kind, f"cannot be read: {error}", "?", unseen=True))
    return found


def _assignments(arm: Arm, uniques: Sequence[str], group: str) -> list[LiveResource]:
    """The assignments that the program makes. Others in the group are not listed, and are deleted with it."""
    own = tuple(role_guid(arm.subscription.rpartition("/")[2], unique) for unique in uniques)
    found = []
    for item in arm.every(f"{group}/providers/Microsoft.Authorization/roleAssignments", VERSIONS[ASSIGNMENT]):
        properties = item["properties"]
        scope, principal = str(properties["scope"]).lower(), properties["principalId"]
        if not f"{scope}/".startswith(f"{group}/"):
            continue  # assigned on the subscription, and listed here because it is inherited
        logical = {assignment_guid(name, scope, principal): name for name in ASSIGNED}.get(str(item["name"]).lower())
        if logical or str(properties["roleDefinitionId"]).lower().endswith(own):
            # An assignment on an account belongs to it: as long as the account is kept, so is the right to read it.
            account, identifier = scope.partition("/blobservices/")[0], str(item["id"]).lower()
            owner = identifier if account == group else account
            found.append(LiveResource(ASSIGNMENT, logical or f"of {principal}", owner, identifier))
    return found


def _role(arm: Arm, unique: str, group: str) -> list[LiveResource]:
    guid = role_guid(arm.subscription.rpartition("/")[2], unique)
    path = f"/providers/Microsoft.Authorization/roleDefinitions/{guid}"
    found = arm.get_if_there(f"{arm.subscription}{path}", VERSIONS[ROLE])
    if found is None:
        return []
    # Azure's id has the subscription, Pulumi's state the group as its scope: both mean this role.
    what = str(found["properties"].get("roleName", guid))
    return [LiveResource(ROLE, what, f"{group}{path}".lower(), f"{arm.subscription}{path}".lower())]


def _budget(arm: Arm, stack: str, group: str) -> list[LiveResource]:
    budget = name(stack, "budget")
    path = f"{group}/providers/Microsoft.Consumption/budgets/{budget}"
    return [LiveResource(BUDGET, budget, path.lower())] if arm.get_if_there(path, VERSIONS[BUDGET]) else []
