"""Find what remains of a stack in its cloud or on this machine, what it costs, and which of it holds data."""

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
_STAYS = ("log group",)
"""What AWS leaves when the stack that made it goes: the log of ParallelCluster's function."""
_MAY_READ = "::may-read"  # Azure: the operator's right to list the data that is kept; the audit needs it
_LOCAL_TYPES = ("pulumi:pulumi:", "pulumi-python:", "pulumi:providers:pulumi")
"""The types in a local stack's state: dynamic resources, their providers and Pulumi's own."""
_GROUP_KIND = "resource group"
_GROUP_TYPE = "azure-native:resources:ResourceGroup"

Resource = dict[str, Any]  # a resource as infra.clouds.audit lists it


def facts_of(stack: str) -> dict[str, Any]:
    """The facts of the stack's file, and `state`: the stack's identity by its state (see pulumi_cli.identity). Without
    a usable file the stack is taken for a local one, which is found by its name. Exit 2 for a cloud's stack without
    `pulumi`, for one without a file whose state has a cloud's resources, and for a broken file of a stack that has
    neither state nor resources here: without the file nobody knows where to look."""
    try:
        facts = pulumi_cli.facts_of(stack)
    except Exit as error:
        types = [entry["type"] for entry in pulumi_cli.exported(stack)] if pulumi_cli.has_pulumi() else []
        if any(not kind.startswith(_LOCAL_TYPES) for kind in types):
            message = f"{error.message}; the stack is in a cloud, and its file says where: put it right first"
            raise Exit(message, code=pulumi_cli.USAGE) from None
        local = [kind for kind in types if not kind.startswith("pulumi:")]
        if not (local if pulumi_cli.has_pulumi() else pulumi_cli.resources(stack)):
            # Ends with the file's error if nothing of the stack is on this machine either.
            found = pulumi_cli.answer("clouds.audit", stack)
            if not found and stack not in pulumi_cli.files():
                raise pulumi_cli.unknown(stack) from None
        facts = {"cluster": "local", "cloud": "", "keep_data": False}
    if facts["cloud"] and not pulumi_cli.has_pulumi():
        install = "curl -fsSL https://get.pulumi.com | sh, or: make pulumi"
        raise Exit(f"stack {stack} is in a cloud: that needs the `pulumi` command ({install})", code=pulumi_cli.USAGE)
    return {**facts, "state": pulumi_cli.identity(stack)}


def known(stack: str, facts: dict[str, Any]) -> list[str]:
    """The resources of the state, as the audit compares them: ids in a cloud, names on this machine."""
    return pulumi_cli.ids(stack) if facts["cloud"] else pulumi_cli.resources(stack)


def find(stack: str, of_state: Sequence[str], facts: dict[str, Any], *flags: str) -> list[Resource]:
    """Everything of the stack except what is in `of_state`. `flags` are options of infra.clouds.audit."""
    where = [] if facts["cloud"] else ["--local"]
    state = ["--known", json.dumps(list(of_state)), "--state", json.dumps(facts.get("state") or {})]
    found: list[Resource] = pulumi_cli.answer("clouds.audit", stack, *where, *flags, *state)
    return found


def find_settled(stack: str, of_state: Sequence[str], facts: dict[str, Any]) -> list[Resource]:
    """What exists outside the state; in a cloud only what is still listed after SETTLE_S seconds."""
    end = time.monotonic() + (SETTLE_S if facts["cloud"] else 0)
    while (found := find(stack, of_state, facts)) and time.monotonic() < end:
        # Data and other stacks' resources stay, and a kind that may not be listed now will not be listed later.
        if all(each["unseen"] or each["holds"] or not each["ours"] for each in found):
            break
        say(f"audit: {len(found)} resources are still there; looking again in {SETTLE_POLL_S:.0f} s")
        time.sleep(SETTLE_POLL_S)
    return found


def sweep(stack: str, of_state: Sequence[str], facts: dict[str, Any], *, delete_data: bool = False) -> list[Resource]:
    """Remove what exists outside the state, except data, unless `delete_data`; returns what was removed."""
    return find(stack, of_state, facts, "--sweep", *(["--delete-data"] if delete_data else []))


def sweep_destroyed(stack: str, facts: dict[str, Any], *, keeps: bool) -> list[str]:
    """After `pulumi destroy`, remove what remains of a cloud's stack; returns the ids of what is to be kept. With data
    that is kept Pulumi keeps all that the data depends on (on Azure the account's subnet, and so the NAT gateway, which
    costs money). Data that the last `up` was to keep it only drops from its state. What cannot be removed here is
    printed, and the audit that follows finds it."""
    of_state = _of_data(stack, facts) if keeps else []
    rest = find(stack, of_state, facts)
    if rest and (keeps or data(rest) or any(each["kind"] in _STAYS for each in rest)):
        try:
            sweep(stack, of_state, facts, delete_data=not keeps)
        except Exit as error:
            if error.code == pulumi_cli.USAGE:
                raise
            say(error.message or "the sweep did not finish")
    return of_state


def _of_data(stack: str, facts: dict[str, Any]) -> list[str]:
    """The ids of the data, from the state and from the cloud, and of its resource group."""
    state = [entry for entry in pulumi_cli.exported(stack) if entry.get("id")]
    there = find(stack, [], facts)
    ids = [entry["id"] for entry in state if entry["type"].startswith(_DATA_TYPES)]
    ids += [each["owner"] for each in data(there)]
    groups = [entry["id"] for entry in state if entry["type"] == _GROUP_TYPE]
    groups += [each["owner"] for each in there if each["kind"] == _GROUP_KIND]
    return [*ids, *(group for group in groups if any(id.lower().startswith(f"{group.lower()}/") for id in ids))]


def forget(stack: str) -> None:
    """Remove the user's record of a stack of which nothing remains, so that its next `up` gets a new id."""
    pulumi_cli.ask(pulumi_cli.module("clouds.audit", stack, "--forget"))


def data(found: Sequence[Resource]) -> list[Resource]:
    """The resources that can hold the user's data, empty or not."""
    return [each for each in goes(found) if each["holds"] or each["kind"] in _DATA_KINDS]


def with_data(found: Sequence[Resource]) -> list[Resource]:
    """The resources that hold the user's data. A kind that could not be listed counts as full."""
    own = [each for each in found if each["ours"]]
    return [each for each in own if each["holds"] or (each["unseen"] and each["kind"] in _DATA_KINDS)]


def strangers(found: Sequence[Resource]) -> list[Resource]:
    """The resources with this stack's name but another stack id or owner: never touched."""
    return [each for each in found if each["whose"]]


def goes(found: Sequence[Resource]) -> list[Resource]:
    """The resources that a sweep would remove: the user's own, without kinds that could not be listed."""
    return [each for each in found if each["ours"] and not each["unseen"]]


def data_urns(stack: str) -> list[str]:
    """The URNs in the state of the data's resources and their parts: policy, encryption, access."""
    state = pulumi_cli.exported(stack)
    return [e["urn"] for e in state if e["type"].startswith(_DATA_TYPES) or e["urn"].endswith(_MAY_READ)]


def describe(resource: Resource) -> str:
    """`bucket trainyard-lab, with 5 objects`"""
    return f"{resource['kind']} {resource['what']}" + (f", with {resource['holds']}" if resource["holds"] else "")


def show(found: Sequence[Resource], facts: dict[str, Any]) -> None:
    """Print the list as a table; for a cloud's stack also what each resource costs an hour."""
    rows = [
        (
            each["owner"].rpartition("/")[2],
            each["kind"],
            each["what"]
            + (f" with {each['holds']}" if each["holds"] else "")
            + (f" [of {each['whose']}]" if each["whose"] else ""),
            *([price(each)] if facts["cloud"] else []),
        )
        for each in found
    ]
    if rows:
        say(table([("OWNER", "KIND", "WHAT", "USD/H")[: len(rows[0])], *rows]))


def price(resource: Resource) -> str:
    """USD per hour: `0.1234`, `-` for free, `?` for a price that is not in the table."""
    usd = resource["usd_per_hour"]
    return "?" if usd is None else f"{usd:.4f}" if usd else "-"


def costs(found: Sequence[Resource]) -> str:
    """`at least 1.63 USD per hour`; empty if all of it is free."""
    prices = [each["usd_per_hour"] for each in found]
    if not any(usd is None or usd for usd in prices):
        return ""
    return f"{'at least ' if None in prices else ''}{sum(usd or 0 for usd in prices):.4f} USD per hour"
