"""List what `destroy` and `recover` will remove before they ask, and what remains when they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from invoke.exceptions import Exit

from fabfile.output import say
from fabfile.stacks import orphans, pulumi_cli
from fabfile.stacks.orphans import Resource

_NOT_SHOWN = ("pulumi:pulumi:Stack", "pulumi:providers:")
_INTERNAL = ("image", "stack-id")
"""Resources of a local stack that are not listed: removing them loses nothing (the image stays in the cache)."""


def show_destroy(stack: str, facts: dict[str, Any]) -> None:
    """List all that `destroy` removes. Exit 1, with the owner's name, if all of it is somebody else's."""
    found = orphans.find(stack, [], facts)
    others, own = orphans.strangers(found), orphans.goes(found)
    if others and not own and not names(stack):
        orphans.show(others, facts)
        raise Exit(f"{remains(stack, others, '')}; nothing was changed", code=1)
    if facts["cloud"]:
        say(f"destroy removes of stack {stack}:")
        orphans.show(own, facts)
        return
    there = [name for name in names(stack) if name not in _INTERNAL]
    beside = [each for each in own if each["owner"] not in {*there, *_INTERNAL}]
    if there:
        say(f"destroy removes of stack {stack}: {', '.join(there)}")
    if beside:
        say("and what is not in its state:")
        orphans.show(beside, facts)
    if not there and not beside:
        say(f"stack {stack}: it has no resources")


def show_recover(stack: str, facts: dict[str, Any]) -> None:
    """List what `recover` removes: the user's own resources outside the state, except data."""
    found = orphans.find(stack, orphans.known(stack, facts), facts)
    own = [each for each in orphans.goes(found) if not each["holds"]]
    heading = f"not in the state of stack {stack}, and will be removed:"
    say(heading if own else f"nothing of stack {stack} is outside its state")
    orphans.show(own, facts)


def remains(stack: str, found: Sequence[Resource], mend: str, how: tuple[str, str] = ("remains", "remain")) -> str:
    """The last line of a verb after which resources remain: how many, what they cost, and what to do (`mend`). `how` is
    the verb's form for one resource and for several."""
    others = orphans.strangers(found)
    own = [each for each in found if not each["whose"]]
    parts = []
    if own:
        costs = f", cost: {orphans.costs(own)}" if orphans.costs(own) else ""
        parts.append(f"{_count(own)} of stack {stack} {how[len(own) > 1]} (listed above){costs}; {mend}")
    if others:
        who = ", ".join(sorted({str(each["whose"]) for each in others}))
        belong = "belong" if len(others) > 1 else "belongs"
        parts.append(f"{_count(others)} named after stack {stack} (listed above) {belong} to {who}: not touched")
    return "; ".join(parts)


def _count(found: Sequence[Resource]) -> str:
    return "1 resource" if len(found) == 1 else f"{len(found)} resources"


def names(stack: str) -> list[str]:
    """Names of the resources in the state whose removal a user would notice."""
    if not pulumi_cli.has_pulumi():
        return pulumi_cli.resources(stack)
    state = [entry for entry in pulumi_cli.exported(stack) if not entry["type"].startswith(_NOT_SHOWN)]
    return [str(entry["urn"]).rpartition("::")[2] for entry in state]
