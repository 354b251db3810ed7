"""The jobs that run on nodes which are about to go, and the runs on their disks: said before anything is removed."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Collection
from typing import Any

from invoke.exceptions import Exit

from fabfile import targets
from fabfile.output import hint, say
from fabfile.stacks import pulumi_cli

CONNECT_S = 10.0
"""Seconds for reaching the head and logging in: a dead cluster must be quick to destroy."""
ANSWER_S = 20.0
"""Seconds that a head which has been reached may take to say what runs there, this checkout's programs sent first."""
_NODE = re.compile(r"node[0-9]+")
_GOES = re.compile(r"^\s*(node[0-9]+): (?:- delete|\+- replace)", re.MULTILINE)
"""As the embedded engine's preview says it."""


def say_of_destroy(stack: str) -> None:
    """Say what runs on the stack's nodes, and which runs their disks have. A head that does not answer is said, too."""
    inventory = _inventory(stack)
    if inventory:
        jobs = jobs_of(stack, inventory)
        _say(jobs or [], _names(inventory), runs_go=True)


def say_of_up(stack: str, cloud: str) -> None:
    """Say which nodes an `up` removes or replaces, and which jobs and runs go with them.

    `cloud` is empty for a local stack. Says nothing where the cluster is not up, and where the head knows no jobs.
    """
    inventory = _inventory(stack)
    if not inventory:
        return
    jobs = jobs_of(stack, inventory)
    if jobs == []:
        return  # nothing can be lost: no need of a preview
    say("looking which nodes this `up` removes or replaces (a preview)")
    gone = nodes_that_go(stack, cloud)
    if gone:
        say(f"this `up` removes or replaces {', '.join(gone)}")
        _say(jobs or [], gone, runs_go=_names(inventory)[0] in gone)


def nodes_that_go(stack: str, cloud: str) -> list[str]:
    """The nodes that the next `up` deletes or makes anew, by a preview. Empty, said in a line, where that fails."""
    try:
        if not pulumi_cli.has_pulumi():
            return sorted(set(_GOES.findall(pulumi_cli.ask(pulumi_cli.module("state.engine", "preview", stack)))))
        argv = ["pulumi", "preview", "--json", "--refresh", "--stack", stack]
        preview = json.loads(pulumi_cli.ask(argv, **pulumi_cli.plugins(cloud)))
        steps = [(str(step["urn"]).rpartition("::")[2], step["op"]) for step in preview.get("steps", [])]
    except (Exit, ValueError, KeyError) as error:
        say(f"which nodes it removes or replaces is not known: {_line(error)}")
        return []
    return sorted({name for name, op in steps if _NODE.fullmatch(name) and ("delete" in op or "replace" in op)})


def jobs_of(stack: str, inventory: str) -> list[dict[str, Any]] | None:
    """The jobs that the head of an inventory knows; None, said in a line, where it does not answer in time."""
    from fabfile.backends.ssh.head import Head, runs
    from fabfile.remote.fleet import Fleet

    reached = threading.Event()
    answer: list[list[dict[str, Any]]] = []
    wrong: list[str] = []

    def ask() -> None:
        try:
            cluster = targets.parse(inventory, f"stack {stack}")
            with Fleet(cluster, timeout=CONNECT_S) as fleet:
                fleet.connection(cluster.head)
                reached.set()
                answer.append(Head(fleet).ask("jobs", runs(cluster)))
        except Exception as error:  # noqa: BLE001 (whatever is wrong with a node, it must not keep a destroy)
            wrong.append(_line(error))
        finally:
            reached.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    limit = ANSWER_S if reached.wait(CONNECT_S) else 0.0
    thread.join(limit)
    if answer:
        return answer[0]
    why = f"reached, but no answer within {limit:.0f} s" if limit else f"not reached within {CONNECT_S:.0f} s"
    say(f"what runs on the nodes is not known: {wrong[0] if wrong else f'{_names(inventory)[0]}: {why}'}")
    return None


def _inventory(stack: str) -> str:
    """The stack's inventory as JSON text; empty where it is not up."""
    try:
        return pulumi_cli.stack_output(stack)
    except Exit:
        return ""


def _names(inventory: str) -> list[str]:
    """The nodes' names, the head's first."""
    return [str(node["name"]) for node in json.loads(inventory)["nodes"]]


def _line(error: Exception) -> str:
    """What an error says, in one line of at most 200 characters."""
    text = str(error.message if isinstance(error, Exit) else error) or type(error).__name__
    return " ".join(text.split())[:200]


def _say(every: list[dict[str, Any]], gone: Collection[str], *, runs_go: bool) -> None:
    for job in every:
        if job["state"] in ("RUNNING", "PENDING") and set(job["nodes"]) & set(gone):
            say(f"job {job['id']} is {job['state']} on {', '.join(job['nodes'])}: it ends with them")
    if runs_go and every:
        names = ", ".join(job["id"] for job in every[-8:])
        more = f" and {len(every) - 8} more" if len(every) > 8 else ""
        say(hint(f"runs on their disks go with them: {names}{more}  (fab fetch ID brings one here)"))
