"""Resources that have no tags and are in no resource listing: role assignments, the stack's own role, the budget.

They are deleted with their resource group, except for the role: it outlives the group, and the next `up` then fails
because a role of that name exists. All are recognised by the names that the program gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    found: list[LiveResource] = []
    for listed in groups:
        found += _seen(ASSIGNMENT, partial(_assignments, arm, uniques, listed["id"]))
    for unique in uniques:
        # Looked up by name, as the role may exist without the group.
        group = f"{arm.subscription}/resourceGroups/{group_name(unique)}"
        found += _seen(ROLE, partial(_role, arm, unique, group))
        found += _seen(BUDGET, partial(_budget, arm, claim.stack, group))
    return found


def _seen(kind: str, look: Callable[[], list[LiveResource]]) -> list[LiveResource]:
    try:
        return look()
    except ArmError as error:
        return [LiveResource(kind, f"cannot be looked at: {error}", "?", unseen=True)]


def _assignments(arm: Arm, uniques: Sequence[str], group: str) -> list[LiveResource]:
    """The assignments that the program makes. Others in the group are not listed, and are deleted with it."""
    own = tuple(role_guid(arm.subscription.rpartition("/")[2], unique) for unique in uniques)
    listed = arm.every(f"{group}/providers/Microsoft.Authorization/roleAssignments", VERSIONS[ASSIGNMENT])
    return [live for item in listed if (live := _assignment(item, group.lower(), own))]


def _assignment(item: dict[str, Any], group: str, own: tuple[str, ...]) -> LiveResource | None:
    properties, called = item["properties"], str(item["name"]).lower()
    scope = str(properties["scope"]).lower()
    if not f"{scope}/".startswith(f"{group}/"):
        return None  # assigned on the subscription, and listed here because it is inherited
    names = [assignment_guid(logical, scope, properties["principalId"]) for logical in ASSIGNED]
    role = str(properties["roleDefinitionId"]).lower()
    if called not in names and not role.endswith(own):
        return None
    what = ASSIGNED[names.index(called)] if called in names else f"of {properties['principalId']}"
    # An assignment on an account belongs to it: as long as the account is kept, so is the right to read it.
    account = scope.partition("/blobservices/")[0]
    identifier = str(item["id"]).lower()
    return LiveResource(ASSIGNMENT, what, account if account != group else identifier, identifier)


def _role(arm: Arm, unique: str, group: str) -> list[LiveResource]:
    called = role_guid(arm.subscription.rpartition("/")[2], unique)
    path = f"/providers/Microsoft.Authorization/roleDefinitions/{called}"
    found = arm.get_if_there(f"{arm.subscription}{path}", VERSIONS[ROLE])
    if found is None:
        return []
    # Azure's id has the subscription, Pulumi's state the group as its scope: both mean this role.
    what = str(found["properties"].get("roleName", called))
    return [LiveResource(ROLE, what, f"{group}{path}".lower(), f"{arm.subscription}{path}".lower())]


def _budget(arm: Arm, stack: str, group: str) -> list[LiveResource]:
    called = name(stack, "budget")
    path = f"{group}/providers/Microsoft.Consumption/budgets/{called}"
    return [LiveResource(BUDGET, called, path.lower())] if arm.get_if_there(path, VERSIONS[BUDGET]) else []
