"""What of a stack exists in its AWS account, whatever any state says; and a sweep of what the state does not know.

Everything of a stack carries the tag trainyard-stack with its name, and only what carries it is ever removed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

from infra.aws import api, removal
from infra.aws.listing import KINDS, Place
from infra.aws.provider import region
from infra.errors import OperationError
from infra.naming import STACK_TAG
from infra.settings import Settings
from infra.thing import Thing


def place_of(settings: Settings) -> Place:
    """Where the stack is. UsageError without credentials that work."""
    where = region(settings)
    who = api.identity(where)
    return Place(settings.stack, where, who["Account"], who["Arn"].split(":")[1])


def find(settings: Settings) -> list[Thing]:
    """Everything of the stack; a kind that cannot be listed stands there as unseen, with the reason."""
    place = place_of(settings)
    found: list[Thing] = []
    for kind in KINDS:
        found += _of_kind(place, kind)
    return [*found, *_second_opinion(place, {thing.kind for thing in found if thing.unseen})]


def _of_kind(place: Place, kind: str) -> list[Thing]:
    lister, _ = KINDS[kind]
    try:
        return list(lister(place))
    except api.FAILURES as error:
        return [unseen(kind, error)]


def unseen(kind: str, error: Exception) -> Thing:
    """A refusal, or a service that is not there (a stand-in without placement groups): not the same as none."""
    return Thing(kind, f"cannot be listed: {api.one_line(error)}", "?", usd_per_hour=None, unseen=True)


def _second_opinion(place: Place, blind: Collection[str]) -> Iterator[Thing]:
    """What the account's own index of tags has of kinds that are not listed above.

    Kinds that are listed are left out: the index keeps what was deleted for an hour or so.
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
        if place.is_ours(item) and _type(service, resource) not in covered:
            identifier = resource.replace(":", "/").rpartition("/")[2]
            yield Thing("other", item["ResourceARN"], identifier, usd_per_hour=None)


def _type(service: str, resource: str) -> str:
    """`ec2:instance`, from the two ends of an ARN; a bucket's has no type in it."""
    return "s3:bucket" if service == "s3" else f"{service}:{resource.replace(':', '/').partition('/')[0]}"


def sweep(settings: Settings, known: Collection[str], *, delete_data: bool = False) -> list[Thing]:
    """Remove everything of the stack that belongs to none of the `known` ids; what it was.

    A bucket with something in it goes only with `delete_data`. Safe to repeat after whatever ended it. Raises
    OperationError for what could not be removed, after everything else was.
    """
    place = place_of(settings)
    swept: list[Thing] = []
    trouble: list[str] = []
    for kind in KINDS:
        # Listed when its turn comes: a disk may have gone with its instance.
        doomed = [thing for thing in _of_kind(place, kind) if _is_doomed(thing, known, delete_data)]
        if kind in removal.BEFORE:
            trouble += _try(f"{kind}s", partial(removal.BEFORE[kind], place, doomed))
        for thing in doomed:
            trouble += _try(f"{kind} {thing.what}", partial(removal.REMOVERS[kind], place, thing))
        swept += doomed
    if trouble:
        raise OperationError("could not be removed:\n" + "\n".join(trouble))
    return swept


def _is_doomed(thing: Thing, known: Collection[str], delete_data: bool) -> bool:
    is_known = thing.owner in known or thing.id in known
    return thing.ours and not thing.unseen and not is_known and (delete_data or not thing.holds)


def _try(what: str, remove: Callable[[], None]) -> list[str]:
    """What went wrong, if it did: one thing that stays must not keep the others."""
    try:
        remove()
    except api.FAILURES as error:
        return [f"{what}: {api.one_line(error)}"]
    return []
