"""List what `destroy` and `recover` will remove before they ask, and what remains when they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from invoke.exceptions import Exit

from fabfile.output import say
from fabfile.stacks import orphans, pulumi_cli
from fabfile.stacks.orphans import Thing

_NOT_SHOWN = ("pulumi:pulumi:Stack", "pulumi:providers:")
_INTERNAL = ("image", "stack-id")
"""Resources of a local stack that are not listed: removing them loses nothing (the image stays in the cache)."""


def show_destroy(stack: str, told: dict[str, Any]) -> None:
    """List all that `destroy` removes. Exit 1, with the owner's name, if all of it is somebody else's."""
    found = orphans.find(stack, [], told)
    others = orphans.strangers(found)
    own = orphans.goes(found)
    if others and not own and not names(stack):
        orphans.show(others, prices=bool(told["cloud"]))
        raise Exit(f"{_of_others(stack, others)}; nothing was changed", code=1)
    if told["cloud"]:
        _list(f"destroy removes of stack {stack}:", own, told)
        return
    there = [name for name in names(stack) if name not in _INTERNAL]
    beside = [thing for thing in own if thing["owner"] not in {*there, *_INTERNAL}]
    if there:
        say(f"destroy removes of stack {stack}: {', '.join(there)}")
    if beside:
        _list("and what its state does not know:", beside, told)
    if not there and not beside:
        say(f"stack {stack}: nothing of it is there")


def show_recover(stack: str, told: dict[str, Any]) -> None:
    """List what `recover` removes: the user's own things outside the state, except data."""
    found = orphans.find(stack, orphans.known(stack, told), told)
    own = [thing for thing in orphans.goes(found) if not thing["holds"]]
    if own:
        _list(f"outside the state of stack {stack}, to be removed:", own, told)
    else:
        say(f"nothing of stack {stack} is outside its state")


def remains(stack: str, found: Sequence[Thing], mend: str, how: tuple[str, str] = ("remains", "remain")) -> str:
    """The last line of a verb that leaves things: how many, what they cost, and what to do (`mend`).

    `how` is the verb's form for one thing and for several.
    """
    others = orphans.strangers(found)
    own = [thing for thing in found if not thing["whose"]]
    parts = []
    if own:
        count = "1 resource" if len(own) == 1 else f"{len(own)} resources"
        costs = f", cost: {orphans.costs(own)}" if orphans.costs(own) else ""
        parts.append(f"{count} of stack {stack} {how[len(own) > 1]} (listed above){costs}; {mend}")
    if others:
        parts.append(_of_others(stack, others))
    return "; ".join(parts)


def _of_others(stack: str, others: Sequence[Thing]) -> str:
    who = ", ".join(sorted({str(thing["whose"]) for thing in others}))
    count = "1 resource" if len(others) == 1 else f"{len(others)} resources"
    belong = "belongs" if len(others) == 1 else "belong"
    return f"{count} named after stack {stack} (listed above) {belong} to {who}: not touched"


def names(stack: str) -> list[str]:
    """Names of the resources in the state whose removal a user would notice."""
    if not pulumi_cli.has_pulumi():
        return pulumi_cli.resources(stack)
    state = [entry for entry in pulumi_cli.exported(stack) if not entry["type"].startswith(_NOT_SHOWN)]
    return [str(entry["urn"]).rpartition("::")[2] for entry in state]


def _list(heading: str, things: Sequence[Thing], told: dict[str, Any]) -> None:
    say(heading)
    orphans.show(things, prices=bool(told["cloud"]))
