"""`fab up`, `preview` and `refresh`: make a stack what its configuration says, or compare the two."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from invoke.context import Context
from invoke.tasks import task

from fabfile import targets
from fabfile.command_line import AtLeast
from fabfile.output import next_command, say
from fabfile.question import ask, must_be_answerable
from fabfile.stacks import capacity, plugins, pulumi_cli, work_lost
from fabfile.verbs.config import Change, key_set
from fabfile.verbs.cost import announce

NO_PULUMI = (
    "no `pulumi` command here: the embedded engine runs the same program, for local stacks only, without imports, "
    "policies and history, and with a state that `pulumi` does not read (the command: make pulumi)"
)


@task(help={"nodes": "how many nodes, the head among them: first written to the stack's file, as fab config set does"})
def up(_c: Context, stack: str = "", yes: bool = False, nodes: Annotated[int, AtLeast(1)] | None = None) -> None:
    """Make the cluster what its configuration says: create, change or replace what differs."""
    if nodes is not None:
        must_be_answerable(yes)
    with key_set(stack, "nodes", str(nodes)) if nodes is not None else contextlib.nullcontext(Change()) as change:
        facts = _up(stack, yes, change)
    targets.renew_files(stack)
    say(next_command("fab kubeconfig" if facts["kubernetes"] else "fab wait"))


def _up(stack: str, yes: bool, change: Change) -> dict[str, Any]:
    """Check, ask, change; `change.began` is set as soon as something may have been changed. Returns the facts."""
    facts = checked(stack)
    must_be_answerable(yes)
    work_lost.say_of_up(stack, facts["cloud"])
    if pulumi_cli.has_pulumi():
        update = pulumi_up(stack, facts, pulumi_cli.YES if yes else ())
        code, change.began = update.code, update.began
    else:
        if not yes:
            pulumi_cli.run("preview", stack)
            ask(f"change stack {stack} like this?")
        change.began = True
        code = pulumi_cli.follow(pulumi_cli.module("state.engine", "up", stack))
        change.began = code != pulumi_cli.USAGE  # which it ends with before it changes anything
    pulumi_cli.end(code, stack)
    return facts


def pulumi_up(stack: str, facts: Mapping[str, Any], options: Sequence[str]) -> capacity.Update:
    """Run `pulumi up` on a stack with these options more; `facts` as in infra.config.summary."""
    pulumi_cli.make_known(stack)
    argv = ["pulumi", "up", "--refresh", "--suppress-outputs", "--stack", stack, *_policies(facts)]
    return capacity.up([*argv, *options], stack, facts)


@task
def preview(_c: Context, stack: str = "") -> None:
    """Show what `up` would do."""
    facts = checked(stack)
    if pulumi_cli.has_pulumi():
        pulumi_cli.make_known(stack)
    pulumi_cli.run("preview", stack, "--refresh", *_policies(facts), **pulumi_cli.plugins(facts["cloud"]))
    say(next_command("fab up"))


@task
def refresh(_c: Context, stack: str = "") -> None:
    """Compare the state with what is really there: a node that died is noticed."""
    pulumi_cli.must_exist(stack)
    pulumi_cli.run("refresh", stack, *pulumi_cli.YES)
    say(next_command("fab up  (brings back what is gone)"))


def checked(stack: str) -> dict[str, Any]:
    """The facts of a stack that can be made here; prints its price and which engine runs. Exit 2 if it cannot."""
    state = json.dumps(pulumi_cli.identity(stack))
    answer = pulumi_cli.answer("preflight", stack, "--state", state)
    announce(answer["bill"])
    if not pulumi_cli.has_pulumi():
        say(NO_PULUMI)
    else:
        plugins.fetch(answer["plugins"])
    facts: dict[str, Any] = answer["facts"]
    return facts


def _policies(facts: Mapping[str, Any]) -> list[str]:
    """Options that run the policy pack: every cloud's stack is checked before it is made."""
    return ["--policy-pack", plugins.policy_pack()] if facts["cloud"] else []
