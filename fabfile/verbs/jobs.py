"""`fab jobs`: the jobs of a cluster, the newest last."""

from __future__ import annotations

import json as json_text
import time
from typing import Any

from invoke.context import Context
from invoke.tasks import task

from fabfile.backends.ssh.head import Head, runs
from fabfile.output import duration, interruptible, next_command, say, table
from fabfile.remote.fleet import Fleet
from fabfile.targets import load

_HEADING = ["JOB", "STATE", "NODES", "ATTEMPT", "AGE", "TOOK", "COST", "REASON"]
_REASON = 60


@task(
    help={"json": "print JSON, for programs", "stack": "the stack", "inventory": "an inventory file instead of a stack"}
)
def jobs(_c: Context, stack: str = "", inventory: str = "", json: bool = False) -> None:
    """List the jobs: state, nodes, time, cost."""
    cluster = load(stack, inventory)
    with interruptible(), Fleet(cluster) as fleet:
        every: list[dict[str, Any]] = Head(fleet).ask("jobs", runs(cluster))
    if json:
        say(json_text.dumps(every, indent=2))
        return
    say(table([_HEADING, *(row(state, time.time()) for state in every)]))
    running = [state["id"] for state in every if state["state"] in ("RUNNING", "PENDING")]
    say(next_command(f"fab logs {running[-1]} --follow" if running else "fab train JOB.toml"))


def age(state: dict[str, Any], now: float) -> str:
    """Since its first start; `2d (resumed 5m)` for a job that was gone on with."""
    last = max(0.0, now - state["created"])
    if not state["started"] or state["started"] >= state["created"]:
        return duration(last)
    return f"{duration(now - state['started'])} (resumed {duration(last)})"


def row(state: dict[str, Any], now: float) -> list[str]:
    started, ended = state["started"], state["ended"] or now
    seconds = max(0.0, ended - started - state.get("paused", 0.0)) if started else 0.0
    reason = str(state["reason"])
    return [
        state["id"],
        state["state"],
        str(len(state["nodes"])),
        str(state["attempt"]),
        age(state, now),
        duration(seconds) if started else "-",
        f"${seconds / 3600 * state['price_per_hour']:.2f}",
        (reason[: _REASON - 1] + "…" if len(reason) > _REASON else reason) or "-",
    ]
