"""Finds what a stack has in its Azure subscriptions, independent of any state, and removes what no state contains."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from infra.clouds.azure import listing
from infra.clouds.azure.arm import Arm, ArmError
from infra.clouds.azure.credentials import subscription
from infra.clouds.azure.listing import GROUP, RESOURCES, VERSIONS
from infra.clouds.live_resource import LiveResource
from infra.config.settings import Settings
from infra.errors import OperationError
from infra.state.ownership import Claim


def find(settings: Settings, arm: Arm | None = None, claim: Claim | None = None) -> list[LiveResource]:
    """Everything with the stack's name, in every subscription that the stack has used.

    Raises UsageError without credentials, OperationError when Azure's listing fails.
    """
    claim = claim or Claim(settings.stack, settings.cloud.owner)
    arm = arm or Arm(subscription())
    found = listing.find(arm, claim)
    for other in _elsewhere(arm, claim):
        try:
            found += listing.find(other, claim)
        except ArmError as error:
            what = f"the stack was in subscription {other.subscription[15:]}, which cannot be looked at: {error}"
            found.append(LiveResource("everything", what, "?", usd_per_hour=None, unseen=True))
    return found


def _elsewhere(arm: Arm, claim: Claim) -> list[Arm]:
    """The other subscriptions that the stack has used. A listing covers all regions, so one for each is enough."""
    accounts = {location.account.lower() for location in claim.locations if location.cloud == "azure"}
    others = sorted(accounts - {"", arm.subscription.lower().rpartition("/")[2]})
    return [arm.of(subscription) for subscription in others]


def sweep(
    settings: Settings,
    known: Collection[str],
    *,
    delete_data: bool = False,
    arm: Arm | None = None,
    claim: Claim | None = None,
) -> list[LiveResource]:
    """Remove everything of the user's own stack whose id is not in `known`; returns what was removed.

    A storage account that is not empty is removed only with `delete_data`. Safe to repeat after an interruption.
    Raises OperationError for what could not be removed, after trying everything else.
    """
    claim = claim or Claim(settings.stack, settings.cloud.owner)
    arm = arm or Arm(subscription())
    swept: list[LiveResource] = []
    trouble: list[str] = []
    for place in (arm, *_elsewhere(arm, claim)):
        try:
            gone, wrong = _sweep_one(place, claim, known, delete_data=delete_data)
        except ArmError as error:
            if place is arm:
                raise
            gone, wrong = [], [f"subscription {place.subscription[15:]}: {error}"]
        swept += gone
        trouble += wrong
    if trouble:
        raise OperationError("could not be removed:\n" + "\n".join(trouble))
    return swept


def _sweep_one(
    arm: Arm, claim: Claim, known: Collection[str], *, delete_data: bool
) -> tuple[list[LiveResource], list[str]]:
    """(what was removed, what went wrong) in one subscription."""
    known = {identifier.lower() for identifier in known}
    found = listing.find(arm, claim)
    if not delete_data:  # kept data keeps the assignment that lets the operator read it
        known |= {live.owner for live in found if live.holds}
    doomed = [live for live in found if _is_doomed(live, known)]
    trouble: list[str] = []
    swept: list[LiveResource] = []
    for live in doomed:  # already in the order of removal, groups last
        if live.kind == GROUP and arm.every(f"{live.owner}/resources", RESOURCES):
            continue  # deleting a group deletes its content: only empty groups are deleted
        trouble += _try(live, partial(_remove, arm, live))
        swept.append(live)
    return swept, trouble


def _is_doomed(live: LiveResource, known: Collection[str]) -> bool:
    return live.ours and not live.unseen and not {live.owner, live.id} & set(known)


def _remove(arm: Arm, live: LiveResource) -> None:
    version = VERSIONS.get(live.kind)
    if version is None:
        raise ArmError(f"not a kind that trainyard makes; remove it: az resource delete --ids {live.id}")
    arm.delete(live.id or live.owner, version)


def _try(live: LiveResource, remove: Callable[[], None]) -> list[str]:
    """Error messages; empty on success. One failure must not stop the removal of the rest."""
    try:
        remove()
    except ArmError as error:
        return [f"{live.kind} {live.what}: {error}"]
    return []
