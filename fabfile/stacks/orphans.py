"""Find what is left of a stack in its cloud or on this machine, what it costs, and which of it holds data."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from invoke.exceptions import Exit

from fabfile.output import say, table
from fabfile.stacks import pulumi_cli

SETTLE_S, SETTLE_POLL_S = 60.0, 10.0
"""A cloud goes on listing what was just removed (a disk `deleting`, a machine `shutting-down`): ask again every
SETTLE_POLL_S seconds, for SETTLE_S."""
_DATA_TYPES = ("aws:s3/", "azure-native:storage:")
_DATA_KINDS = ("bucket", "storage account")
_MAY_READ = "::may-read"
"""Azure: the operator's right to list the data that is kept. It stays too, as the audit needs it."""
_GROUP_KIND = "resource group"
_LOCAL_TYPES = ("pulumi:pulumi:", "pulumi-python:", "pulumi:providers:pulumi")
"""The types in a local stack's state: dynamic resources, their providers and Pulumi's own."""
_GROUP_TYPE = "azure-native:resources:ResourceGroup"

Thing = dict[str, Any]


def about(stack: str) -> dict[str, Any]:
    """The settings of the stack's file, and `state`: the stack's identity by its state (see pulumi_cli.identity).

    Without a usable file the stack is taken for a local one, which is found by its name.

    Exit 2 for a cloud's stack without `pulumi`, for one without a file whose state has a cloud's resources, and for a
    broken file of a stack that is nowhere to be seen: without the file nobody knows where to look.
    """
    try:
        told = pulumi_cli.about(stack)
    except Exit as error:
        if pulumi_cli.has_pulumi() and any(
            not entry["type"].startswith(_LOCAL_TYPES) for entry in pulumi_cli.exported(stack)
        ):
            message = f"{error.message}; the stack is in a cloud, and its file says where: put it right first"
            raise Exit(message, code=pulumi_cli.USAGE) from None
        if not _has_local_state(stack):
            # Ends with the file's error if nothing of the stack is on this machine either.
            found = json.loads(pulumi_cli.ask(pulumi_cli.module("clouds.audit", stack)))
            if not found and stack not in pulumi_cli.files():
                raise pulumi_cli.unknown(stack) from None
        told = {"cluster": "local", "cloud": "", "keep_data": False}
    if told["cloud"] and not pulumi_cli.has_pulumi():
        install = "curl -fsSL https://get.pulumi.com | sh"
        raise Exit(f"stack {stack} is in a cloud: that needs the `pulumi` command ({install})", code=pulumi_cli.USAGE)
    return {**told, "state": pulumi_cli.identity(stack)}


def _has_local_state(stack: str) -> bool:
    """Whether the state has resources, and none of a cloud."""
    if not pulumi_cli.has_pulumi():
        return bool(pulumi_cli.resources(stack))
    return any(not entry["type"].startswith("pulumi:") for entry in pulumi_cli.exported(stack))


def known(stack: str, told: dict[str, Any]) -> list[str]:
    """The resources of the state, as the audit compares them: ids in a cloud, names on this machine."""
    return pulumi_cli.ids(stack) if told["cloud"] else pulumi_cli.resources(stack)


def find_settled(stack: str, of_state: Sequence[str], told: dict[str, Any]) -> list[Thing]:
    """What is left outside the state; in a cloud only what is still listed after SETTLE_S seconds."""
    end = time.monotonic() + (SETTLE_S if told["cloud"] else 0)
    while (found := find(stack, of_state, told)) and time.monotonic() < end and not all(map(_stays, found)):
        say(f"audit: {len(found)} resources are still there; looking again in {SETTLE_POLL_S:.0f} s")
        time.sleep(SETTLE_POLL_S)
    return found


def _stays(thing: Thing) -> bool:
    """Whether waiting is useless: data and other stacks' things are not being removed, and a kind that may not be
    listed now will not be listed later."""
    return bool(thing["unseen"] or thing["holds"] or not thing["ours"])


def sweep(stack: str, of_state: Sequence[str], told: dict[str, Any], *, delete_data: bool = False) -> list[Thing]:
    return find(stack, of_state, told, "--sweep", *(["--delete-data"] if delete_data else []))


def find(stack: str, of_state: Sequence[str], told: dict[str, Any], *flags: str) -> list[Thing]:
    """Everything of the stack except what is in `of_state`. `flags` are options of infra.clouds.audit."""
    where = [] if told["cloud"] else ["--local"]
    state = json.dumps(told.get("state") or {})
    known = json.dumps(list(of_state))
    asked = pulumi_cli.module("clouds.audit", stack, *where, *flags, "--known", known, "--state", state)
    found: list[Thing] = json.loads(pulumi_cli.ask(asked))
    return found


def sweep_destroyed(stack: str, told: dict[str, Any], *, keeps: bool) -> list[str]:
    """After `pulumi destroy`, remove what it has left of a cloud's stack; returns the ids of what is to be kept.

    With data that is kept Pulumi keeps all that the data depends on (on Azure the account's subnet, and so the NAT
    gateway, which costs money). Data that the last `up` was to keep it only drops from its state. What cannot be
    removed here is printed, and the audit that follows finds it.
    """
    of_state = _of_data(stack, told) if keeps else []
    rest = find(stack, of_state, told)
    if rest and (keeps or data(rest)):
        try:
            sweep(stack, of_state, told, delete_data=not keeps)
        except Exit as error:
            if error.code == pulumi_cli.USAGE:
                raise
            say(error.message or "the sweep did not finish")
    return of_state


def _of_data(stack: str, told: dict[str, Any]) -> list[str]:
    """The ids of the data, from the state and from the cloud, and of its resource group."""
    state = pulumi_cli.exported(stack)
    ids = [entry["id"] for entry in state if entry["type"].startswith(_DATA_TYPES) and entry.get("id")]
    things = find(stack, [], told)
    ids += [thing["owner"] for thing in data(things)]
    groups = [entry["id"] for entry in state if entry["type"] == _GROUP_TYPE and entry.get("id")]
    groups += [thing["owner"] for thing in things if thing["kind"] == _GROUP_KIND]
    lowered = [identifier.lower() for identifier in ids]
    return [*ids, *(group for group in groups if any(each.startswith(f"{group.lower()}/") for each in lowered))]


def forget(stack: str) -> None:
    """Remove the user's record of a stack of which nothing is left, so that its next `up` gets a new id."""
    pulumi_cli.ask(pulumi_cli.module("clouds.audit", stack, "--forget"))


def data(things: Sequence[Thing]) -> list[Thing]:
    """The things that can hold the user's data, empty or not."""
    own = [thing for thing in things if thing["ours"] and not thing["unseen"]]
    return [thing for thing in own if thing["holds"] or thing["kind"] in _DATA_KINDS]


def with_data(things: Sequence[Thing]) -> list[Thing]:
    """The things that hold the user's data. A kind that could not be listed counts as full."""
    own = [thing for thing in things if thing["ours"]]
    return [thing for thing in own if thing["holds"] or (thing["unseen"] and thing["kind"] in _DATA_KINDS)]


def strangers(things: Sequence[Thing]) -> list[Thing]:
    """The things with this stack's name but another stack id or owner: never touched."""
    return [thing for thing in things if thing["whose"]]


def goes(things: Sequence[Thing]) -> list[Thing]:
    """The things that a sweep would remove: the user's own, without kinds that could not be listed."""
    return [thing for thing in things if thing["ours"] and not thing["unseen"]]


def data_urns(stack: str) -> list[str]:
    """The URNs in the state of the data's resources and their parts: policy, encryption, access."""
    return [
        entry["urn"]
        for entry in pulumi_cli.exported(stack)
        if entry["type"].startswith(_DATA_TYPES) or entry["urn"].endswith(_MAY_READ)
    ]


def describe(thing: Thing) -> str:
    return f"{thing['kind']} {thing['what']}" + (f", with {thing['holds']}" if thing["holds"] else "")


def show(things: Sequence[Thing], *, prices: bool) -> None:
    """Print the list as a table; with `prices`, also what each thing costs an hour."""
    if not things:
        return
    heading = ("OWNER", "KIND", "WHAT", *(["USD/H"] if prices else []))
    rows = [
        (
            thing["owner"].rpartition("/")[2],
            thing["kind"],
            thing["what"]
            + (f" with {thing['holds']}" if thing["holds"] else "")
            + (f" [of {thing['whose']}]" if thing["whose"] else ""),
            *([price(thing)] if prices else []),
        )
        for thing in things
    ]
    say(table([heading, *rows]))


def price(thing: Thing) -> str:
    """USD per hour: `0.1234`, `-` for free, `?` for a price that is not in the table."""
    if thing["usd_per_hour"] is None:
        return "?"
    return f"{thing['usd_per_hour']:.4f}" if thing["usd_per_hour"] else "-"


def costs(things: Sequence[Thing]) -> str:
    """`at least 1.63 USD per hour`; empty if all of it is free."""
    sure = sum(thing["usd_per_hour"] or 0 for thing in things)
    unknown = [thing for thing in things if thing["usd_per_hour"] is None]
    if not sure and not unknown:
        return ""
    return f"{'at least ' if unknown else ''}{sure:.4f} USD per hour"
