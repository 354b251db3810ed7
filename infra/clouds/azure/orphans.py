"""Finds what a stack has in its Azure subscriptions, independent of any state, and removes what no state contains."""

from __future__ import annotations

from collections.abc import Collection, Iterator

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
    here, *elsewhere = _subscriptions(arm, claim)
    found = listing.find(here, claim)
    for other in elsewhere:
        try:
            found += listing.find(other, claim)
        except ArmError as error:
            what = f"the stack was in subscription {other.subscription[15:]}, which cannot be read: {error}"
            found.append(LiveResource("everything", what, "?", usd_per_hour=None, unseen=True))
    return found


def _subscriptions(arm: Arm | None, claim: Claim) -> list[Arm]:
    """The chosen subscription, then the others that the stack has used. A listing of one covers all regions."""
    here = arm or Arm(subscription())
    accounts = {location.account.lower() for location in claim.locations if location.cloud == "azure"}
    others = sorted(accounts - {"", here.subscription.lower().rpartition("/")[2]})
    return [here, *map(here.of, others)]


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
    swept: list[LiveResource] = []
    errors: list[str] = []
    here, *elsewhere = _subscriptions(arm, claim)
    for place in (here, *elsewhere):
        try:
            for live, error in _swept(place, claim, known, delete_data=delete_data):
                swept.append(live)
                errors += [error] if error else []
        except ArmError as error:
            if place is here:
                raise
            errors.append(f"subscription {place.subscription[15:]}: {error}")
    if errors:
        raise OperationError("could not be removed:\n" + "\n".join(errors))
    return swept


def _swept(arm: Arm, claim: Claim, known: Collection[str], *, delete_data: bool) -> Iterator[tuple[LiveResource, str]]:
    """Remove one subscription's resources; yields each with its error, empty if it was removed."""
    found = listing.find(arm, claim)  # in the order of removal, groups last
    # Data that stays keeps the assignment that lets the operator read it.
    known = {*known, *(live.owner for live in found if live.holds and not delete_data)}
    for live in found:
        if not live.ours or live.unseen or live.is_in(known):
            continue
        if live.kind == GROUP and arm.every(f"{live.owner}/resources", RESOURCES):
            continue  # deleting a group deletes its content: only empty groups are deleted
        try:
            _remove(arm, live)
        except ArmError as error:  # must not stop the removal of the rest
            yield live, f"{live.kind} {live.what}: {error}"
        else:
            yield live, ""


def _remove(arm: Arm, live: LiveResource) -> None:
    if live.kind not in VERSIONS:
        raise ArmError(f"not a kind that trainyard makes; remove it: az resource delete --ids {live.id}")
    arm.delete(live.id or live.owner, VERSIONS[live.kind])
