"""`fab top`: what the nodes and the ranks do, live."""

from __future__ import annotations

import sys
import time
from typing import Annotated

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import backends
from fabfile.command_line import AtLeast
from fabfile.output import is_terminal, say, table
from fabfile.targets import load_any
from fabfile.top import screen, view
from fabfile.top.watch import Watcher
from infra.inventory import SshCluster

_ONCE = 1.0  # seconds between the two samples that a single table needs
_PATIENCE = 30.0


@task(help={"once": "print the tables once, as without a terminal", "every": "seconds between two looks"})
def top(
    _c: Context,
    once: bool = False,
    every: Annotated[float, AtLeast(0.5)] = 1.0,
    stack: str = "",
    inventory: str = "",
) -> None:
    """Show nodes and ranks, live: CPU, memory, network, step, tokens/s, loss, waits; Ctrl-C ends it."""
    cluster = load_any(stack, inventory)
    has_machines = isinstance(cluster, SshCluster)
    live = is_terminal(sys.stdout) and not once
    with Watcher(backends.nodes_of(cluster), every if live else _ONCE) as watcher:
        if live:
            screen.show(cluster.name, lambda: view.of(watcher.news(), with_machines=has_machines), every)
            return
        watcher.wait(2, _PATIENCE)
        news = watcher.news()
    _print(view.of(news, with_machines=has_machines))
    if not any(one.sample for one in news.values()):
        raise Exit("no node has answered", code=1)


def _print(shown: view.View) -> None:
    say(time.strftime("%Y-%m-%d %H:%M:%S"))
    if shown.nodes:
        say(table([view.NODES, *shown.nodes]))
    for job in shown.jobs:
        say(f"\n{job.title}")
        if job.ranks:
            say(table([view.RANKS, *job.ranks]))
    if not shown.jobs:
        say("\nno job is under way")
