"""The verbs that make and unmake a stack: up, preview, refresh, destroy, recover, audit."""

from __future__ import annotations

import json
import sys
from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import backend, known_hosts, pulumi_lock
from fabfile.cost import announce
from fabfile.output import say, table

HELP = {"stack": "name of the stack (default: $TRAINYARD_STACK, or local)"}
HELP_YES = {**HELP, "yes": "do not ask"}


@task(help=HELP_YES)
def up(_c: Context, stack: str = "", yes: bool = False) -> None:
    """Make the cluster what its configuration says: create, change or replace what differs."""
    stack = stack or backend.default_stack()
    backend.ask(backend.module("preflight", stack))
    announce(stack)
    _say_engine()
    _must_be_answerable(yes)
    if backend.has_pulumi():
        backend.ask(["pulumi", "stack", "select", stack, "--create", "--non-interactive"])
        _finish(
            backend.follow(["pulumi", "up", "--refresh", "--suppress-outputs", "--stack", stack, *_pulumi_yes(yes)]),
            stack,
        )
    else:
        if not yes:
            _finish(backend.follow(backend.module("engine", "preview", stack)), stack)
            _ask(f"change stack {stack} like this?")
        _finish(backend.follow(backend.module("engine", "up", stack)), stack)
    say(f"next: fab wait{_flag(stack)}")


@task(help=HELP)
def preview(_c: Context, stack: str = "") -> None:
    """Show what `up` would do."""
    stack = stack or backend.default_stack()
    backend.ask(backend.module("preflight", stack))
    announce(stack)
    _say_engine()
    if backend.has_pulumi():
        backend.ask(["pulumi", "stack", "select", stack, "--create", "--non-interactive"])
        _finish(backend.follow(["pulumi", "preview", "--stack", stack]), stack)
    else:
        _finish(backend.follow(backend.module("engine", "preview", stack)), stack)
    say(f"next: fab up{_flag(stack)}")


@task(help=HELP)
def refresh(_c: Context, stack: str = "") -> None:
    """Compare the state with what is really there: a node that died is noticed."""
    stack = stack or backend.default_stack()
    if backend.has_pulumi():
        _finish(backend.follow(["pulumi", "refresh", "--stack", stack, *_pulumi_yes(True)]), stack)
    else:
        _finish(backend.follow(backend.module("engine", "refresh", stack)), stack)
    say(f"next: fab up{_flag(stack)}  (brings back what is gone)")


@task(help=HELP_YES)
def destroy(_c: Context, stack: str = "", yes: bool = False) -> None:
    """Remove the whole cluster, with what is on its disks; ends with an audit that must find nothing."""
    stack = stack or backend.default_stack()
    _must_be_answerable(yes)
    if not yes:
        _ask(f"destroy stack {stack} and everything on its nodes?")
    if backend.has_pulumi():
        if backend.exists(stack):
            _finish(backend.follow(["pulumi", "destroy", "--stack", stack, *_pulumi_yes(True)]), stack)
    else:
        _finish(backend.follow(backend.module("engine", "destroy", stack)), stack)
    found = _leftovers(stack, [])
    if found:
        _show(found)
        raise Exit(f"{len(found)} things of stack {stack} are left; remove them: fab recover{_flag(stack)}", code=1)
    known_hosts.forget(stack)
    say(f"audit: nothing of stack {stack} is left")


@task(help=HELP_YES)
def recover(_c: Context, stack: str = "", yes: bool = False) -> None:
    """After a killed `up`: free the lock of a dead holder, repair the state, remove what is nobody's."""
    stack = stack or backend.default_stack()
    _must_be_answerable(yes)
    if not yes:
        _ask(f"free the lock of stack {stack} and remove what its state does not know?")
    if backend.has_pulumi():
        if backend.exists(stack):
            pulumi_lock.free(stack)
            pulumi_lock.end_language_hosts()
            refreshing = ["pulumi", "refresh", "--clear-pending-creates", "--stack", stack, *_pulumi_yes(True)]
            _finish(backend.follow(refreshing), stack)
    else:
        _finish(backend.follow(backend.module("engine", "refresh", stack)), stack)
    swept = json.loads(backend.ask(backend.module("audit", stack, "--sweep", "--known", _known(stack))))
    _show(swept)
    say(f"removed {len(swept)} things that were nobody's" if swept else "nothing was left over")
    say(f"next: fab up{_flag(stack)}, or fab destroy{_flag(stack)}")


@task(help=HELP)
def audit(_c: Context, stack: str = "") -> None:
    """List everything of the stack that exists outside its state."""
    stack = stack or backend.default_stack()
    found = _leftovers(stack, backend.resources(stack))
    if found:
        _show(found)
        raise Exit(f"{len(found)} things of stack {stack} are nobody's; remove them: fab recover{_flag(stack)}", code=1)
    say(f"audit: nothing of stack {stack} exists outside its state")


def _known(stack: str) -> str:
    return ",".join(backend.resources(stack))


def _leftovers(stack: str, known: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(backend.ask(backend.module("audit", stack, "--known", ",".join(known))))
    return found


def _show(things: list[dict[str, Any]]) -> None:
    if things:
        say(table([("OWNER", "KIND", "WHAT"), *((thing["owner"], thing["kind"], thing["what"]) for thing in things)]))


def _say_engine() -> None:
    if not backend.has_pulumi():
        say("no `pulumi` command here: the embedded engine runs the same program (local stacks only)")


def _pulumi_yes(yes: bool) -> list[str]:
    return ["--yes", "--skip-preview"] if yes else []


def _must_be_answerable(yes: bool) -> None:
    """A question that nobody can answer would hang: said before anything is done."""
    if not yes and (sys.stdin is None or not sys.stdin.isatty()):
        raise Exit("this asks before it changes anything, and there is no terminal to ask on: add --yes", code=2)


def _ask(question: str) -> None:
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise Exit("nothing was changed", code=1)


def _finish(code: int, stack: str) -> None:
    """End with a child's exit code; it has said why itself."""
    if code == 0:
        return
    if code in (2, 130):
        raise Exit(code=code)
    raise Exit(f"stack {stack}: it did not finish; when it was killed: fab recover{_flag(stack)}", code=1)


def _flag(stack: str) -> str:
    return "" if stack == backend.default_stack() else f" --stack {stack}"
