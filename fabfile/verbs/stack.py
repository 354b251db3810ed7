"""The verbs that make and unmake a stack: up, preview, refresh, destroy, recover, audit."""

from __future__ import annotations

import json
from typing import Annotated, Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import targets
from fabfile.command_line import AtLeast
from fabfile.output import hint, next_command, say
from fabfile.question import ask, must_be_answerable
from fabfile.remote import known_hosts
from fabfile.stacks import capacity, orphans, pulumi_cli, pulumi_lock, removal, work_lost
from fabfile.verbs.config import Begun, key_set
from fabfile.verbs.cost import announce

HELP = {"stack": "name of the stack (default: $TRAINYARD_STACK, or local)"}
HELP_YES = {**HELP, "yes": "do not ask"}


@task(
    help={
        **HELP_YES,
        "nodes": "how many nodes, the head among them: first written to the stack's file, as fab config set does",
    }
)
def up(_c: Context, stack: str = "", yes: bool = False, nodes: Annotated[int, AtLeast(1)] | None = None) -> None:
    """Make the cluster what its configuration says: create, change or replace what differs."""
    stack = stack or pulumi_cli.default_stack()
    if nodes is None:
        _up(stack, yes, Begun())
    else:
        must_be_answerable(yes)
        with key_set(stack, "nodes", str(nodes)) as begun:
            _up(stack, yes, begun)
    targets.renew_files(stack)
    say(next_command("fab wait"))


def _up(stack: str, yes: bool, begun: Begun) -> None:
    """Check, ask, change; `begun.value` is set as soon as something may have been changed."""
    told = _checked(stack)
    must_be_answerable(yes)
    work_lost.say_of_up(stack, told["cloud"])
    if pulumi_cli.has_pulumi():
        pulumi_cli.make_known(stack)
        argv = ["pulumi", "up", "--refresh", "--suppress-outputs", "--stack", stack]
        update = capacity.up([*argv, *_policies(told), *_pulumi_yes(yes)], stack, told)
        begun.value = update.began
        _finish(update.code, stack)
        return
    if not yes:
        _finish(pulumi_cli.follow(pulumi_cli.module("state.engine", "preview", stack)), stack)
        ask(f"change stack {stack} like this?")
    begun.value = True
    code = pulumi_cli.follow(pulumi_cli.module("state.engine", "up", stack))
    begun.value = code != pulumi_cli.USAGE  # which it ends with before it changes anything
    _finish(code, stack)


@task(help=HELP)
def preview(_c: Context, stack: str = "") -> None:
    """Show what `up` would do."""
    stack = stack or pulumi_cli.default_stack()
    told = _checked(stack)
    if pulumi_cli.has_pulumi():
        pulumi_cli.make_known(stack)
        argv = ["pulumi", "preview", "--refresh", "--stack", stack, *_policies(told)]
        _finish(pulumi_cli.follow(argv, **pulumi_cli.plugins(told["cloud"])), stack)
    else:
        _finish(pulumi_cli.follow(pulumi_cli.module("state.engine", "preview", stack)), stack)
    say(next_command("fab up"))


@task(help=HELP)
def refresh(_c: Context, stack: str = "") -> None:
    """Compare the state with what is really there: a node that died is noticed."""
    stack = stack or pulumi_cli.default_stack()
    if pulumi_cli.has_pulumi():
        _finish(pulumi_cli.follow(["pulumi", "refresh", "--stack", stack, *_pulumi_yes(True)]), stack)
    else:
        _finish(pulumi_cli.follow(pulumi_cli.module("state.engine", "refresh", stack)), stack)
    say(next_command("fab up  (brings back what is gone)"))


HELP_DESTROY = {
    **HELP_YES,
    "keep-data": "leave the bucket with what it holds, and the right to pay for it",
    "delete-data": "remove the bucket with what it holds, without asking",
}


@task(help=HELP_DESTROY)
def destroy(
    _c: Context, stack: str = "", yes: bool = False, keep_data: bool = False, delete_data: bool = False
) -> None:
    """Remove the whole cluster, with what is on its disks; ends with an audit that must find nothing."""
    stack = stack or pulumi_cli.default_stack()
    if keep_data and delete_data:
        raise Exit("--keep-data and --delete-data: only one of them", code=2)
    must_be_answerable(yes)
    told = orphans.about(stack)
    removal.show_destroy(stack, told)
    work_lost.say_of_destroy(stack)
    if not yes:
        ask(f"destroy stack {stack} and everything on its nodes?")
    keeps = keep_data or (told["keep_data"] and not delete_data)
    if told["cloud"] and not keeps and not delete_data:
        keeps = _asks_for_data(stack, told, yes)
    if pulumi_cli.has_pulumi():
        if pulumi_cli.exists(stack):
            excluded = [f"--exclude={urn}" for urn in orphans.data_urns(stack)] if keeps else []
            _finish(pulumi_cli.follow(["pulumi", "destroy", "--stack", stack, *excluded, *_pulumi_yes(True)]), stack)
    else:
        _finish(pulumi_cli.follow(pulumi_cli.module("state.engine", "destroy", stack)), stack)
    _audit_destroyed(stack, told, keeps)
    known_hosts.forget(stack)
    if not keeps:
        orphans.forget(stack)
    say(f"audit: nothing of stack {stack} is left" + (" but the data that you keep" if keeps else ""))


def _asks_for_data(stack: str, told: dict[str, Any], yes: bool) -> bool:
    """Ask whether to keep the data. Exit 2 if nobody can be asked: `--yes` is for the machines, not for the data."""
    full = orphans.with_data(orphans.find(stack, [], told))
    if not full:
        return False
    for thing in full:
        say(orphans.describe(thing))
    if yes:
        raise Exit(f"{orphans.describe(full[0])}: add --delete-data, or --keep-data", code=2)
    return input("delete that as well? It stays otherwise. [y/N] ").strip().lower() not in ("y", "yes")


def _audit_destroyed(stack: str, told: dict[str, Any], keeps: bool) -> None:
    """List what is kept, with its price; Exit 1, with a list, if anything is left that should be gone."""
    of_state = orphans.sweep_destroyed(stack, told, keeps=keeps) if told["cloud"] else []
    found = orphans.find_settled(stack, of_state, told)
    for thing in orphans.data(orphans.find(stack, [], told)) if keeps else []:
        price = orphans.costs([thing]) or "free"
        say(hint(f"kept: {orphans.describe(thing)} ({price}); remove it: fab destroy --delete-data"))
    if found:
        orphans.show(found, prices=bool(told["cloud"]))
        raise Exit(removal.remains(stack, found, "remove them: fab recover"), code=1)


@task(help=HELP_YES)
def recover(_c: Context, stack: str = "", yes: bool = False) -> None:
    """After a killed `up`: free the lock of a dead holder, repair the state, remove what no state knows."""
    stack = stack or pulumi_cli.default_stack()
    must_be_answerable(yes)
    told = orphans.about(stack)
    removal.show_recover(stack, told)
    if not yes:
        ask(f"free the lock of stack {stack} and remove what its state does not know?")
    if pulumi_cli.has_pulumi():
        if pulumi_cli.exists(stack):
            pulumi_lock.free(stack)
            pulumi_lock.end_language_hosts()
            refreshing = ["pulumi", "refresh", "--clear-pending-creates", "--stack", stack, *_pulumi_yes(True)]
            _finish(pulumi_cli.follow(refreshing), stack)
    else:
        _finish(pulumi_cli.follow(pulumi_cli.module("state.engine", "refresh", stack)), stack)
    of_state = orphans.known(stack, told)
    swept = orphans.sweep(stack, of_state, told)
    orphans.show(swept, prices=bool(told["cloud"]))
    say(f"removed {len(swept)} resources that are in no state" if swept else "nothing was left over")
    _say_what_stays(stack, of_state, told)
    say(next_command("fab up, or fab destroy"))


def _say_what_stays(stack: str, of_state: list[str], told: dict[str, Any]) -> None:
    """Exit 1 if the sweep has left things: data, other owners' things, and kinds that could not be listed."""
    stays = orphans.find_settled(stack, of_state, told)
    orphans.show(stays, prices=bool(told["cloud"]))
    if any(thing["holds"] for thing in stays):
        say(hint("data is never swept; remove it: fab destroy --delete-data"))
    if stays:
        raise Exit(removal.remains(stack, stays, "the list says why"), code=1)


@task(help=HELP)
def audit(_c: Context, stack: str = "") -> None:
    """List everything of the stack that exists outside its state."""
    stack = stack or pulumi_cli.default_stack()
    told = orphans.about(stack)
    found = orphans.find(stack, orphans.known(stack, told), told)
    if found:
        orphans.show(found, prices=bool(told["cloud"]))
        outside = ("is outside its state", "are outside its state")
        raise Exit(removal.remains(stack, found, "remove them: fab recover", outside), code=1)
    say(f"audit: nothing of stack {stack} exists outside its state")


def _checked(stack: str) -> dict[str, Any]:
    """The preflight's JSON of a stack that can be made here; prints the price and which engine runs."""
    if not pulumi_cli.has_pulumi():
        pulumi_cli.refuse_without_pulumi(pulumi_cli.about(stack), stack)  # before the cloud is asked
    state = json.dumps(pulumi_cli.identity(stack))
    told = json.loads(pulumi_cli.ask(pulumi_cli.module("preflight", stack, "--state", state)))
    announce(told["bill"])
    if not pulumi_cli.has_pulumi():
        say("no `pulumi` command here: the embedded engine runs the same program (local stacks only)")
    about: dict[str, Any] = told["about"]
    return about


def _policies(told: dict[str, Any]) -> list[str]:
    """Options that run the policy pack: every cloud's stack is checked before it is made."""
    return ["--policy-pack", "infra/policy"] if told["cloud"] else []


def _pulumi_yes(yes: bool) -> list[str]:
    return ["--yes", "--skip-preview"] if yes else []


def _finish(code: int, stack: str) -> None:
    """Exit with a child's exit code; the child has printed why."""
    if code == 0:
        return
    if code in (2, 130):
        raise Exit(code=code)
    raise Exit(f"stack {stack}: it did not finish; when it was killed: fab recover", code=1)
