"""`fab wait`: follow the boot of each node, live, until all are ready or one has failed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile.backends.kubernetes import machines
from fabfile.command_line import AtLeast
from fabfile.output import colour, next_command, say
from fabfile.remote.boot import Listeners, NodeBoot, Record
from fabfile.remote.ended import MEND, WHY, is_gone
from fabfile.remote.fleet import Fleet
from fabfile.remote.join import join
from fabfile.remote.slurm_nodes import wait_until_usable
from fabfile.targets import load_any
from infra.inventory import Cluster, KubeCluster, Node

_LOOK_SECONDS = 0.5  # between two checks that the nodes' machines still exist
_SLURM_SECONDS = 60.0  # for Slurm on booted nodes, which takes about 2
_QUIET_SECONDS = 5.0  # without output, after which a line lists the nodes that are not ready
_CONSOLE_LINES = 15
_CONSOLE_BYTES = 65536
_CONSOLE_WIDTH = 300  # sudo writes whole programs on one line


@task(help={"timeout": "seconds until a silent node ends the wait"})
def wait(_c: Context, timeout: Annotated[float, AtLeast(0)] = 600.0, stack: str = "", inventory: str = "") -> None:
    """Follow the nodes' boot until all are ready, then let them know each other; with Slurm, until it can use them."""
    until_ready(load_any(stack, inventory), timeout)
    say(next_command("fab check"))


def until_ready(cluster: Cluster, timeout: float) -> None:
    """Return when all nodes are ready and know each other. Exit 1 once one has failed, or after `timeout` seconds."""
    if isinstance(cluster, KubeCluster):
        machines.wait(cluster, timeout)
        return
    with Fleet(cluster) as fleet:
        began = time.monotonic()
        follow_boot(fleet, timeout)
        joined = join(fleet)
        if joined:
            say(f"joined: every node knows the others' names, addresses and host keys ({len(joined)} changed)")
        if cluster.launcher == "slurm":
            wait_until_usable(fleet, min(timeout, _SLURM_SECONDS))
        count = len(cluster.nodes)
        say(f"{count} node{'s' * (count > 1)} of {cluster.name} ready in {time.monotonic() - began:.1f} s")


def follow_boot(fleet: Fleet, timeout: float) -> dict[str, Record]:
    """Print the boot's events until every node is ready; returns their records by name. Exit 1 once one has failed,
    or after `timeout` seconds."""
    began = time.monotonic()
    boots = {node.name: NodeBoot(node, began) for node in fleet.cluster.nodes}
    looked, printed = began - _LOOK_SECONDS, began
    with closing(Listeners(fleet)) as listeners:
        while any(boot.state != "ready" for boot in boots.values()):
            name, kind, text = listeners.next(0.2)
            now = time.monotonic()
            if now - looked >= _LOOK_SECONDS:
                looked = now
                if gone := {boot.node: WHY for boot in boots.values() if is_gone(boot.node)}:
                    raise _exit(f"{len(gone)} of {len(boots)} nodes are gone", gone, MEND)
            if kind == "refused":
                raise Exit(text, code=1)
            for boot in boots.values():
                lines = getattr(boot, kind)(text, now) if boot.node.name == name else []
                for line in [*lines, *boot.tick(now)]:
                    say(f"{colour(boot.node.name, 'cyan')}  {line}")
                    printed = now
                if boot.state == "failed":
                    raise _failure(boot)
            late = [boot for boot in boots.values() if boot.state != "ready"]
            if now - printed >= _QUIET_SECONDS:
                printed = now
                say(_waiting(late, len(boots), now - began))
            if now - began > timeout:
                seen = {boot.node: f"last seen: {boot.seen}" for boot in late}
                raise _exit(f"{len(seen)} of {len(boots)} nodes not ready after {timeout:g} s", seen, "fab status")
    return {name: boot.record for name, boot in boots.items()}


def _waiting(late: list[NodeBoot], count: int, seconds: float) -> str:
    """`waiting for 2 of 3 nodes (15 s): node2: step torch has begun; node3: Connection refused`."""
    listed = "; ".join(f"{boot.node.name}: {boot.seen[:100]}" for boot in late[:4])
    more = f"; and {len(late) - 4} more" if len(late) > 4 else ""
    return f"waiting for {len(late)} of {count} nodes ({seconds:.0f} s): {listed}{more}"


def _failure(boot: NodeBoot) -> Exit:
    record = boot.record
    head = f"{boot.node.name}  failed at step {record.get('step')}: {record.get('reason')}"
    log = [f"    {line}" for line in record.get("log") or []]
    following = next_command(f"fab ssh {boot.node.name}")
    return Exit("\n".join([colour(head, "red", file=sys.stderr), *log, following]), code=1)


def _exit(heading: str, why: Mapping[Node, str], following: str) -> Exit:
    """The Exit for nodes that do not become ready, each with the end of its console's log."""
    lines = [heading]
    for node, reason in why.items():
        lines.append(f"{colour(node.name, 'red', file=sys.stderr)}  {reason}")
        lines += [f"    {line}" for line in _console_tail(node)]
    return Exit("\n".join([*lines, next_command(following)]), code=1)


def _console_tail(node: Node) -> list[str]:
    if not node.console:
        return []
    try:
        with Path(node.console).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _CONSOLE_BYTES))  # it may have many MiB
            lines = file.read(_CONSOLE_BYTES).decode(errors="replace").splitlines()
            tail = [line.rstrip()[:_CONSOLE_WIDTH] for line in lines if line.strip()][-_CONSOLE_LINES:]
    except OSError as error:
        return [f"console {node.console}: {error.strerror}"]
    return [f"console {node.console}:", *tail]
