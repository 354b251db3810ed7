"""`fab check`: is this cluster fit for a job? One line per finding, and the way to mend what is not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import output, targets
from fabfile.check import launch, launched
from fabfile.check.gather import Fact, Gathering
from fabfile.check.judge import JUDGES, verdict
from fabfile.check.verdict import Verdict, next_step, summary
from fabfile.ssh import Fleet
from infra.inventory import SshCluster

COLOURS = {"pass": "green", "warn": "yellow", "fail": "red"}


@task(help={"stack": "the stack to check", "inventory": "a file with nodes of your own, instead of a stack"})
def check(_c: Context, stack: str = "", inventory: str = "") -> None:
    """Pre-flight: SSH, versions, clocks, disks, ports and every link's bandwidth, with the way to mend each."""
    cluster = targets.load(stack, inventory)
    started = time.monotonic()
    verdicts = []
    with output.interruptible(), Fleet(cluster) as fleet, contextlib.closing(verdicts_of(cluster, fleet)) as found:
        for one in found:
            verdicts.append(one)
            output.say(output.colour(one.level, COLOURS[one.level]) + one.line()[len(one.level) :])
    output.say(summary(verdicts, time.monotonic() - started))
    output.say(output.next_command(next_step(verdicts)))
    if any(one.level == "fail" for one in verdicts):
        raise Exit(code=1)


def verdicts_of(cluster: SshCluster, fleet: Fleet) -> Generator[Verdict, None, None]:
    """Every check's verdict as soon as it is known."""
    gathering = Gathering(cluster, fleet)
    facts: dict[str, Fact] = {}
    for fact in gathering.facts():
        facts[fact.name] = fact
        if fact.name in JUDGES:
            yield verdict(cluster, fact)
    for name, run, judged in (
        ("mpirun", launch.hello, launched.mpirun),
        ("all-reduce", launch.network, launched.network),
    ):
        one = launched.blocked(name, cluster, facts) or judged(cluster, run(cluster, gathering.sessions))
        yield one
        if one.level == "fail":
            break  # what mpirun cannot start has no network to measure
