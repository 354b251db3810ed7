"""`fab ssh-config`, `fab ssh` and `fab run`: reach the nodes by hand."""

from __future__ import annotations

import os
import sys

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile.output import next_command, prefixed, say
from fabfile.remote.fleet import Fleet
from fabfile.remote.known_hosts import directory, write
from fabfile.remote.openssh import CONFIG, config_text, options, quoted
from fabfile.targets import choose, load


@task(name="ssh-config")
def ssh_config(_c: Context, stack: str = "", inventory: str = "") -> None:
    """Write an SSH configuration, so that `ssh node2` works."""
    cluster = load(stack, inventory)
    path = directory(cluster.name) / CONFIG
    write(path, config_text(cluster))
    last = cluster.nodes[-1].name
    say(f"written: {path}")
    say("to include it, put this line at the top of ~/.ssh/config:")
    say(f"    Include {quoted(path)}")
    say(f"next: ssh {last}   (or, without including it: ssh -F {quoted(path)} {last})")


@task(name="ssh", help={"node": "name of the node"})
def ssh(_c: Context, node: str, stack: str = "", inventory: str = "") -> None:
    """Log in to a node."""
    cluster = load(stack, inventory)
    if not node or "," in node:
        raise Exit(f"one node is needed; there are: {', '.join(each.name for each in cluster.nodes)}", code=2)
    (target,) = choose(cluster, node)
    argv = ["ssh", *options(cluster, target), target.address]
    sys.stdout.flush()
    try:
        os.execvp(argv[0], argv)
    except FileNotFoundError:
        raise Exit("there is no ssh command on this machine: install OpenSSH's client", code=1) from None


@task(
    help={"command": "shell command", "nodes": "names of nodes, with commas between them (node1,node2); default: all"}
)
def run(_c: Context, command: str, nodes: str = "", stack: str = "", inventory: str = "") -> None:
    """Run a command on all nodes at once; the exit code is that of the worst."""
    cluster = load(stack, inventory)
    chosen = choose(cluster, nodes)

    def show(node: str, stream: str, line: str) -> None:
        file = sys.stdout if stream == "stdout" else sys.stderr
        say(prefixed(node, line, file=file), file=file)

    with Fleet(cluster) as fleet:
        results = fleet.run(command, nodes=chosen, on_line=show)
    bad = [result for result in results.values() if not result.ok]
    for result in bad:
        say(prefixed(result.node, result.reason or f"exit code {result.exited}", file=sys.stderr), file=sys.stderr)
    # On stderr: stdout has only the output of the nodes' commands.
    say(next_command(f"fab ssh {bad[0].node}" if bad else "fab status"), file=sys.stderr)
    if bad:
        raise Exit(code=max(result.exited for result in bad))
