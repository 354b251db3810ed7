"""The jobs that run on nodes which are about to go, and the runs on their disks: said before anything is removed."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Collection
from typing import Any

from invoke.exceptions import Exit

from fabfile import backend
from fabfile.output import hint, say

ANSWER_S = 5.0
"""Seconds that the head may take to say what runs: a dead cluster must be quick to destroy."""
_NODE = re.compile(r"node[0-9]+")
_GOES = re.compile(r"^\s*(node[0-9]+): (?:- delete|\+- replace)", re.MULTILINE)
"""As the embedded engine's preview says it."""


def say_of_destroy(stack: str) -> None:
    """Say what runs on the stack's nodes, and which runs their disks have. A head that does not answer is said, too."""
    cluster = _inventory(stack)
    if cluster is not None:
        names = [node["name"] for node in cluster["nodes"]]
        _say(jobs_of(stack, cluster), names, runs_go=True)


def say_of_up(stack: str) -> None:
    """The same for an `up` that removes or replaces nodes. Says nothing where the cluster is not up."""
    cluster = _inventory(stack)
    if cluster is None:
        return
    every = jobs_of(stack, cluster)
    if not every:
        return  # nothing that could be lost, or nobody to say so: no need of a preview
    gone = nodes_that_go(stack)
    if gone:
        say(f"this `up` removes or replaces {', '.join(gone)}")
        _say(every, gone, runs_go=cluster["nodes"][0]["name"] in gone)


def nodes_that_go(stack: str) -> list[str]:
    """The nodes that the next `up` deletes or makes anew, by a preview. None where that cannot be told."""
    try:
        if not backend.has_pulumi():
            return sorted(set(_GOES.findall(backend.ask(backend.module("engine", "preview", stack)))))
        preview = json.loads(backend.ask(["pulumi", "preview", "--json", "--stack", stack]))
    except (Exit, ValueError):
        return []  # `up` itself says what is wrong with it
    steps = [(str(step["urn"]).rpartition("::")[2], step["op"]) for step in preview.get("steps", [])]
    return sorted({name for name, op in steps if _NODE.fullmatch(name) and ("delete" in op or "replace" in op)})


def jobs_of(stack: str, cluster: dict[str, Any]) -> list[dict[str, Any]]:
    """The jobs that the head knows; none, said in a line, where it does not answer within ANSWER_S seconds."""
    answer: list[list[dict[str, Any]]] = []
    wrong: list[str] = []

    def ask() -> None:
        from fabfile.jobs.head import Head, runs
        from fabfile.ssh import Fleet
        from fabfile.targets import load

        try:
            loaded = load(stack, "")
            with Fleet(loaded) as fleet:
                answer.append(Head(fleet).ask("jobs", runs(loaded)))
        except Exit as error:
            wrong.append(str(error.message))
        except Exception as error:  # noqa: BLE001 (whatever is wrong with a node, it must not keep a destroy)
            wrong.append(str(error) or type(error).__name__)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    if answer:
        return answer[0]
    head = cluster["nodes"][0]["name"]
    why = " ".join(wrong[0].split())[:200] if wrong else f"no answer within {ANSWER_S:.0f} s"
    say(f"what runs on the nodes is not known: {head}: {why}")
    return []


def _inventory(stack: str) -> dict[str, Any] | None:
    try:
        cluster: dict[str, Any] = json.loads(backend.stack_output(stack))
    except (Exit, ValueError):
        return None  # it is not up
    return cluster


def _say(every: list[dict[str, Any]], gone: Collection[str], *, runs_go: bool) -> None:
    for job in every:
        if job["state"] in ("RUNNING", "PENDING") and set(job["nodes"]) & set(gone):
            say(f"job {job['id']} is {job['state']} on {', '.join(job['nodes'])}: it ends with them")
    if runs_go and every:
        names = ", ".join(job["id"] for job in every[-8:])
        more = f" and {len(every) - 8} more" if len(every) > 8 else ""
        say(hint(f"runs on their disks go with them: {names}{more}  (fab fetch ID brings one here)"))
