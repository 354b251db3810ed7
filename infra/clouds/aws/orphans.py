"""Finds a stack's resources in its AWS accounts, and removes those that are not in its state.

Everything of a stack carries the tag trainyard-stack with its name. Only what also carries the stack's id (or, made by
a version without ids, its owner) is ever removed. Every region and account that the stack has used is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial

from infra.clouds.aws import api, removal
from infra.clouds.aws.listing import GLOBAL, KINDS, NAMED, Place
from infra.clouds.aws.names import region
from infra.clouds.live_resource import LiveResource
from infra.clouds.naming import STACK_TAG
from infra.config.settings import Settings
from infra.errors import OperationError, UsageError
from infra.state.ownership import Claim, Location


def place_of(settings: Settings, claim: Claim | None = None) -> Place:
    """The place that the stack's file names. Raises UsageError without working credentials."""
    where = region(settings)
    who = api.identity(where)
    claim = claim or Claim(settings.stack, settings.cloud.owner)
    return Place(claim, where, who["Account"], who["Arn"].split(":")[1])


def places_of(settings: Settings, claim: Claim | None = None) -> tuple[list[Place], list[LiveResource]]:
    """(every place that the stack has used, the current one first; what these credentials cannot look at)."""
    places, blind = [place_of(settings, claim)], []
    here = places[0]
    for location in here.claim.locations:
        if location.cloud != "aws" or any(_is_at(place, location, here.account) for place in places):
            continue
        if location.account in ("", here.account):
            places.append(Place(here.claim, location.region, here.account, here.partition))
        elif (other := _with_profile(here, location)) is not None:
            places.append(other)
        else:
            blind.append(_out_of_reach(location, here.account))
    return places, blind


def _is_at(place: Place, location: Location, current: str) -> bool:
    return (place.region, place.account) == (location.region, location.account or current)


def _with_profile(here: Place, location: Location) -> Place | None:
    """A place in another account, if the AWS profile that was used then still opens it; else None."""
    if not location.profile:
        return None
    try:
        who = api.identity(location.region, location.profile)
    except (OperationError, UsageError):
        return None
    if who["Account"] != location.account:
        return None
    return Place(here.claim, location.region, who["Account"], who["Arn"].split(":")[1], location.profile)


def _out_of_reach(location: Location, current: str) -> LiveResource:
    with_profile = f" (profile {location.profile} then)" if location.profile else ""
    what = (
        f"the stack was in {location.region} of account {location.account}{with_profile}, and these credentials are "
        f"for account {current}: look with those of {location.account} (export AWS_PROFILE=...)"
    )
    return LiveResource("everything", what, "?", usd_per_hour=None, unseen=True)


def find(settings: Settings, claim: Claim | None = None) -> list[LiveResource]:
    """Everything with the stack's name; what another owner has is not `ours`.

    A kind that cannot be listed is returned as unseen, with the reason.
    """
    places, found = places_of(settings, claim)
    for place, kinds in _kinds(places):
        here = [live for kind in kinds for live in _of_kind(place, kind)]
        found += [*here, *_second_opinion(place, {live.kind for live in here if live.unseen})]
    return found


def _kinds(places: list[Place]) -> Iterator[tuple[Place, list[str]]]:
    """The kinds to list in each place; account-wide kinds only in the first region of an account."""
    seen: set[str] = set()
    for place in places:
        yield place, [kind for kind in KINDS if kind not in GLOBAL or place.account not in seen]
        seen.add(place.account)


def _of_kind(place: Place, kind: str) -> list[LiveResource]:
    lister, _ = KINDS[kind]
    try:
        found = list(lister(place))
    except api.FAILURES as error:
        return [unseen(kind, error)]
    return [_located(place, live) for live in found]


def _located(place: Place, live: LiveResource) -> LiveResource:
    """Add the ARN if the state's id is a name, which another region may have as well."""
    form = NAMED.get(live.kind)
    if form is None:
        return live
    arn = form.format(partition=place.partition, region=place.region, account=place.account, name=live.owner)
    return replace(live, arn=arn)


def unseen(kind: str, error: Exception) -> LiveResource:
    """A kind that could not be listed (refused, or no such service): it may have resources all the same."""
    return LiveResource(kind, f"cannot be listed: {api.one_line(error)}", "?", usd_per_hour=None, unseen=True)


def _second_opinion(place: Place, blind: Collection[str]) -> Iterator[LiveResource]:
    """Resources in the account's tag index of kinds that were not listed, or could not be.

    Listed kinds are skipped: the index keeps deleted resources for an hour or so.
    """
    covered = {name for kind, (_, types) in KINDS.items() if kind not in blind for name in types}
    wanted = [{"Key": STACK_TAG, "Values": [place.stack]}]
    try:
        index = place.client("resourcegroupstaggingapi")
        listed = api.pages(index, "get_resources", "ResourceTagMappingList", TagFilters=wanted)
    except api.FAILURES as error:
        yield unseen("everything by tag", error)
        return
    for item in listed:
        service, _, _, resource = item["ResourceARN"].split(":", 5)[2:]
        if place.is_of_stack(item) and _type(service, resource) not in covered:
            identifier = resource.replace(":", "/").rpartition("/")[2]
            yield place.live("other", item["ResourceARN"], identifier, usd_per_hour=None, tags=api.tags(item))


def _type(service: str, resource: str) -> str:
    """`ec2:instance`, from the two ends of an ARN; a bucket's ARN has no type."""
    return "s3:bucket" if service == "s3" else f"{service}:{resource.replace(':', '/').partition('/')[0]}"


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
    for place, kinds in _kinds(places):
        for kind in kinds:
            # List each kind only when its turn comes: a disk may have gone with its instance.
            doomed = [live for live in _of_kind(place, kind) if _is_doomed(live, known, delete_data)]
            if kind in removal.BEFORE:
                trouble += _try(f"{kind}s", partial(removal.BEFORE[kind], place, doomed))
            for live in doomed:
                trouble += _try(f"{kind} {live.what}", partial(removal.REMOVERS[kind], place, live))
            swept += doomed
    if trouble:
        raise OperationError("could not be removed:\n" + "\n".join(trouble))
    return swept


def _is_doomed(live: LiveResource, known: Collection[str], delete_data: bool) -> bool:
    return live.ours and not live.unseen and not live.is_in(known) and (delete_data or not live.holds)


def _try(what: str, remove: Callable[[], None]) -> list[str]:
    """Error messages; empty on success. One failure must not stop the removal of the rest."""
    try:
        remove()
    except api.FAILURES as error:
        return [f"{what}: {api.one_line(error)}"]
    return []
