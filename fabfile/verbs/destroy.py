"""`fab destroy`: remove a stack, ask about its data, and end with an audit that must find nothing."""

from __future__ import annotations

from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile.output import hint, say
from fabfile.question import ask, must_be_answerable
from fabfile.remote import known_hosts
from fabfile.stacks import orphans, pulumi_cli, removal, work_lost


@task(
    help={
        "keep-data": "keep the bucket with its content, which goes on costing money",
        "delete-data": "remove the bucket with its content, without asking",
    }
)
def destroy(
    _c: Context, stack: str = "", yes: bool = False, keep_data: bool = False, delete_data: bool = False
) -> None:
    """Remove the whole cluster, with what is on its disks; ends with an audit that must find nothing."""
    if keep_data and delete_data:
        raise Exit("--keep-data and --delete-data: only one of them", code=2)
    facts = orphans.facts_of(stack)
    removal.show_destroy(stack, facts)
    work_lost.say_of_destroy(stack)
    must_be_answerable(yes)
    if not yes:
        ask(f"destroy stack {stack} and everything on its nodes?")
    keeps = keep_data or (facts["keep_data"] and not delete_data)
    if facts["cloud"] and not keeps and not delete_data:
        keeps = _asks_for_data(stack, facts, yes)
    if not pulumi_cli.has_pulumi():
        pulumi_cli.run("destroy", stack)
    elif pulumi_cli.exists(stack):
        excluded = [f"--exclude={urn}" for urn in orphans.data_urns(stack)] if keeps else []
        pulumi_cli.run("destroy", stack, *excluded, *pulumi_cli.YES)
    _audit_destroyed(stack, facts, keeps)
    known_hosts.forget(stack)
    if not keeps:
        orphans.forget(stack)
    say(f"audit: nothing of stack {stack} is left" + (" but the data that you keep" if keeps else ""))


def _asks_for_data(stack: str, facts: dict[str, Any], yes: bool) -> bool:
    """Ask whether to keep the data. Exit 2 if nobody can be asked: `--yes` is for the machines, not for the data."""
    full = orphans.with_data(orphans.find(stack, [], facts))
    if not full:
        return False
    for each in full:
        say(orphans.describe(each))
    if yes:
        raise Exit(f"{orphans.describe(full[0])}: add --delete-data, or --keep-data", code=2)
    return input("delete that as well? It stays otherwise. [y/N] ").strip().lower() not in ("y", "yes")


def _audit_destroyed(stack: str, facts: dict[str, Any], keeps: bool) -> None:
    """List what is kept, with its price; Exit 1, with a list, if anything is left that should be gone."""
    of_state = orphans.sweep_destroyed(stack, facts, keeps=keeps) if facts["cloud"] else []
    found = orphans.find_settled(stack, of_state, facts)
    for each in orphans.data(orphans.find(stack, [], facts)) if keeps else []:
        price = orphans.costs([each]) or "free"
        say(hint(f"kept: {orphans.describe(each)} ({price}); remove it: fab destroy --delete-data"))
    if found:
        orphans.show(found, facts)
        raise Exit(removal.remains(stack, found, "remove them: fab recover"), code=1)
