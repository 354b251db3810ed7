"""`fab check`: is this cluster fit for a job? One line per check, with the command that mends a failure."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import output, targets
from fabfile.check import kubernetes
from fabfile.check.preflight import verdicts_of
from fabfile.check.verdict import Verdict, next_step, of_account, summary
from fabfile.remote.fleet import Fleet
from infra.inventory import KubeCluster

COLOURS = {"pass": "green", "warn": "yellow", "fail": "red"}


@task(help={"account": "the cloud's account instead of the nodes: before there are any"})
def check(_c: Context, stack: str = "", inventory: str = "", account: bool = False) -> None:
    """Pre-flight: SSH, versions, clocks, disks, ports and every link's bandwidth, with the way to mend each."""
    started = time.monotonic()
    if account:
        if inventory:
            raise Exit("--account is of a stack in a cloud, not of an inventory", code=2)
        verdicts = _printed(of_account(stack))
        # Not next_command: these mends already name the stack, or are commands of the cloud.
        _finish(
            verdicts, started, f"next: {next_step(verdicts)}" if _fails(verdicts) else output.next_command("fab up")
        )
        return
    cluster = targets.load_any(stack, inventory)
    if isinstance(cluster, KubeCluster):
        verdicts = _printed(kubernetes.of_cluster(cluster))
        _finish(verdicts, started, output.next_command(next_step(verdicts, "fab train smoke")))
        return
    with Fleet(cluster) as fleet, contextlib.closing(verdicts_of(cluster, fleet)) as found:
        verdicts = _printed(found)
    _finish(verdicts, started, output.next_command(next_step(verdicts)))


def _printed(found: Iterable[Verdict]) -> list[Verdict]:
    """Print each verdict as soon as it is known; returns all of them."""
    verdicts = []
    for one in found:
        verdicts.append(one)
        output.say(output.colour(one.level, COLOURS[one.level]) + output.hint(one.line()[len(one.level) :]))
    return verdicts


def _fails(verdicts: list[Verdict]) -> bool:
    return any(one.level == "fail" for one in verdicts)


def _finish(verdicts: list[Verdict], started: float, following: str) -> None:
    """Print the count and the next command; Exit 1 if a check failed."""
    output.say(summary(verdicts, time.monotonic() - started))
    output.say(following)
    if _fails(verdicts):
        raise Exit(code=1)
