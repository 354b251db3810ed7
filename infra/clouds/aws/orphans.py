"""Finds a stack's resources in its AWS accounts, and removes those that are not in its state.

Everything of a stack carries the tag trainyard-stack with its name. Only what also carries the stack's id (or, made by
a version without ids, its owner) is ever removed. Every region and account that the stack has used is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from infra.clouds.aws import api
from infra.clouds.aws.kinds import KINDS
from infra.clouds.aws.names import region
from infra.clouds.aws.place import AccountRegion, FoundResource, ResourceKind
from infra.clouds.live_resource import LiveResource
from infra.clouds.naming import STACK_TAG
from infra.config.settings import Settings
from infra.errors import OperationError, UsageError
from infra.state.ownership import Claim, Location


def _place(claim: Claim, where: str, profile: str = "") -> AccountRegion:
    """A region of the account of the credentials. Raises UsageError without working ones."""
    who = api.identity(where, profile)
    return AccountRegion(claim, where, who["Account"], who["Arn"].split(":")[1], profile)


def place_of(settings: Settings, claim: Claim | None = None) -> AccountRegion:
    """The place that the stack's file names. Raises UsageError without working credentials."""
    return _place(claim or Claim(settings.stack, settings.cloud.owner), region(settings))


def places_of(settings: Settings, claim: Claim | None = None) -> tuple[list[AccountRegion], list[LiveResource]]:
    """(every place that the stack has used, the current one first; what these credentials cannot look at)."""
    here = place_of(settings, claim)
    places, blind = {(here.region, here.account): here}, []
    for location in here.claim.locations:
        account = location.account or here.account
        if location.cloud != "aws" or (location.region, account) in places:
            continue
        if account == here.account:
            places[location.region, account] = AccountRegion(here.claim, location.region, account, here.partition)
        elif (other := _with_profile(here.claim, location)) is not None:
            places[location.region, account] = other
        else:
            blind.append(_out_of_reach(location, here.account))
    return list(places.values()), blind


def _with_profile(claim: Claim, location: Location) -> AccountRegion | None:
    """A place in another account, if the AWS profile that was used then still opens it; else None."""
    try:
        place = _place(claim, location.region, location.profile) if location.profile else None
    except (OperationError, UsageError):
        return None
    return place if place and place.account == location.account else None


def _out_of_reach(location: Location, current: str) -> LiveResource:
    with_profile = f" (profile {location.profile} then)" if location.profile else ""
    what = (
        f"the stack was in {location.region} of account {location.account}{with_profile}, and these credentials are "
        f"for account {current}: look with those of {location.account} (export AWS_PROFILE=...)"
    )
    return LiveResource("everything", what, "?", usd_per_hour=None, unseen=True)


def find(settings: Settings, claim: Claim | None = None) -> list[LiveResource]:
    """Everything with the stack's name; another owner's is not `ours`, a kind that cannot be listed is `unseen`."""
    places, found = places_of(settings, claim)
    for place, kinds in _kinds(places, settings.cluster):
        here = [live for kind in kinds for live in _of_kind(place, kind)]
        found += [*here, *_of_other_kinds(place, settings.cluster, {live.kind for live in here if live.unseen})]
    return found


def _kinds(places: list[AccountRegion], cluster: str) -> Iterator[tuple[AccountRegion, list[ResourceKind]]]:
    """The kinds to list in each place, those of one kind of `cluster` only for it; account-wide kinds only in the first
    region of an account."""
    seen: set[str] = set()
    for place in places:
        yield place, [kind for kind in _of_cluster(cluster) if not (kind.is_global and place.account in seen)]
        seen.add(place.account)


def _of_cluster(cluster: str) -> list[ResourceKind]:
    return [kind for kind in KINDS.values() if not kind.only or cluster in kind.only]


def _of_kind(place: AccountRegion, kind: ResourceKind) -> list[LiveResource]:
    try:
        return [kind.live(place, found) for found in kind.listed(place)]
    except api.FAILURES as error:
        return [unseen(kind.name, error)]


def unseen(kind: str, error: Exception) -> LiveResource:
    """A kind that could not be listed (refused, or no such service): it may have resources all the same."""
    return LiveResource(kind, f"cannot be listed: {api.one_line(error)}", "?", usd_per_hour=None, unseen=True)


def _of_other_kinds(place: AccountRegion, cluster: str, blind: Collection[str]) -> Iterator[LiveResource]:
    """The account's tag index, for kinds that are not listed or could not be (`blind`). Others are skipped: it keeps
    deleted resources for an hour or so."""
    covered = {type_ for kind in _of_cluster(cluster) if kind.name not in blind for type_ in kind.types.split()}
    wanted = [{"Key": STACK_TAG, "Values": [place.claim.stack]}]
    try:
        index = place.client("resourcegroupstaggingapi")
        listed = api.pages(index, "get_resources", "ResourceTagMappingList", TagFilters=wanted)
    except api.FAILURES as error:
        yield unseen("everything by tag", error)
        return
    other = ResourceKind("other", "", lambda _place: iter(()), lambda _place, _name: None)
    for item in listed:
        service, _, _, resource = item["ResourceARN"].replace("/", ":").split(":", 5)[2:]
        # `ec2:instance`, from the two ends of an ARN; a bucket's ARN has no type.
        type_ = "s3:bucket" if service == "s3" else f"{service}:{resource.partition(':')[0]}"
        if place.is_of_stack(item) and type_ not in covered:
            identifier = resource.rpartition(":")[2]
            yield other.live(place, FoundResource(api.tags(item), item["ResourceARN"], identifier, usd_per_hour=None))


def sweep(
    settings: Settings, known: Collection[str], *, delete_data: bool = False, claim: Claim | None = None
) -> list[LiveResource]:
    """Remove everything of the user's stack whose id is not in `known`; returns what was removed.

    A bucket that is not empty is removed only with `delete_data`. Safe to repeat after an interruption. Raises
    OperationError for what could not be removed, after trying everything else.
    """
    places, _ = places_of(settings, claim)
    swept: list[LiveResource] = []
    trouble: list[str] = []

    def attempt(what: str, remove: Callable[..., None], *arguments: Any) -> None:
        try:
            remove(*arguments)
        except api.FAILURES as error:
            trouble.append(f"{what}: {api.one_line(error)}")

    for place, kinds in _kinds(places, settings.cluster):
        for kind in kinds:
            # List each kind only when its turn comes: a disk may have gone with its instance.
            doomed = {
                live.id or live.owner: live
                for live in _of_kind(place, kind)
                if live.ours and not live.unseen and not live.is_in(known) and (delete_data or not live.holds)
            }
            if kind.prepare:
                attempt(f"{kind.name}s", kind.prepare, place, list(doomed))
            for identifier, live in doomed.items():
                attempt(f"{kind.name} {live.what}", kind.remove, place, identifier)
            swept += doomed.values()
    if trouble:
        raise OperationError("could not be removed:\n" + "\n".join(trouble))
    return swept
