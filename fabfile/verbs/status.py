"""`fab status`: one line per node, from one round trip per node, all at once."""

from __future__ import annotations

import json as json_text
from collections.abc import Mapping
from typing import Any

from invoke.context import Context
from invoke.tasks import task

from fabfile.backends.kubernetes import machines
from fabfile.output import duration, gigabytes, hint, next_command, say, table, width
from fabfile.remote import node_program
from fabfile.remote.boot import NEVER_BOOTSTRAPPED
from fabfile.remote.command import Result
from fabfile.remote.ended import MEND, WHY, is_gone
from fabfile.remote.fleet import Fleet
from fabfile.targets import load_any
from infra.inventory import KubeCluster, Node, SshCluster

_REACH_SECONDS = 5.0
_TIMEOUT = 20
_BOOT_SECONDS = 120.0  # seconds by which a node's age and uptime may differ without a reboot
_HEADING = [
    *("NAME", "ADDRESS", "STATE", "SOFTWARE", "CPU", "LOAD", "MEMORY", "DISK", "JOB"),
    *("PRICE", "AGE", "SPENT", "ENDS", "IDLE"),
]
_LESS_NEEDED = ("CPU", "SOFTWARE", "PRICE", "IDLE", "ADDRESS", "LOAD", "SPENT")
"""Columns that a table wider than the terminal leaves out, in this order."""
_AS_ANSWERED = ("load", "memory_used_gb", "disk_free_gb", "disk_total_gb", "up_seconds", "limits")
_FEATURES = ("amx", "avx512_bf16", "avx512")


@task(help={"wide": "every column, however wide the table gets"})
def status(_c: Context, stack: str = "", inventory: str = "", json: bool = False, wide: bool = False) -> None:
    """Show the nodes: state, software, load, memory, disk, job, price, age, money, and when they end."""
    cluster = load_any(stack, inventory)
    if isinstance(cluster, KubeCluster):
        machines.status(cluster, json=json)
        return
    results = ask(cluster)
    nodes = [describe(cluster, node, results[node.name]) for node in cluster.nodes]
    queue = of_queue(cluster, results[cluster.head.name])
    if json:
        all_nodes = {"cluster": cluster.name, "hourly_usd": cluster.hourly_usd, "spent_usd": _spent(nodes)}
        say(json_text.dumps({**all_nodes, **({"queue": queue} if queue else {}), "nodes": nodes}, indent=2))
        return
    rows, dropped = fitting([_HEADING, *(_row(node) for node in nodes)], 0 if wide else width())
    say(table(rows))
    if dropped:
        say(hint(f"not shown, for want of columns: {', '.join(dropped)} (fab status --wide)"))
    for node in nodes:
        if node["reason"]:
            say(f"{node['name']} is {node['state']}: {node['reason'].removeprefix(node['name'] + ' ')}")
        if (node["limits"] or {}).get("ends"):
            failed = node["limits"]["failed"].strip()
            say(f"{node['name']} is about to end: {node['limits']['ends']}{'; ' + failed if failed else ''}")
        if node["notice"]:
            say(f"{node['name']} is about to go: {node['notice']}")
        if node["disk_error"]:
            say(f"{node['name']}: its disk cannot be written: {node['disk_error']}")
    if cluster.hourly_usd:
        say(_money(cluster, nodes) + _of_queue(queue))
    if any(node["load_is_shared"] for node in nodes):
        say("LOAD and DISK are those of the machine that the nodes share")
    say(_next(nodes))


def ask(cluster: SshCluster) -> dict[str, Result]:
    """Every node's answer, by its name, over connections of its own; one that cannot be reached has a reason in it."""
    with Fleet(cluster, timeout=_REACH_SECONDS) as fleet:
        return ask_over(fleet)


def ask_over(fleet: Fleet) -> dict[str, Result]:
    """Every node's answer, by its name, over connections that may be open already."""
    queue = fleet.cluster.queue
    partition = [queue.name] if queue else []
    return node_program.run(fleet, "status", "run/trainyard/limits.json", *partition, timeout=_TIMEOUT)


def of_queue(cluster: SshCluster, head: Result) -> dict[str, Any]:
    """The machines that Slurm starts for jobs, and what those that run cost, by the head's answer; empty if the cluster
    has none. `running` and `hourly_usd` are None if Slurm does not say how many run."""
    if cluster.queue is None:
        return {}
    running = json_text.loads(head.stdout).get("queue_running") if head.ok else None
    price = None if running is None else round(running * cluster.queue.hourly_usd, 4)
    return {"name": cluster.queue.name, "nodes": cluster.queue.nodes, "running": running, "hourly_usd": price}


def describe(cluster: SshCluster, node: Node, result: Result) -> dict[str, Any]:
    """All that is known of a node, under the names that `--json` prints."""
    answer = json_text.loads(result.stdout) if result.ok else {}
    state, reason = ("gone", WHY) if not result.ok and is_gone(node) else _state(result, answer)
    record, job = answer.get("ready") or {}, answer.get("job") or {}
    age = answer.get("age_seconds")
    age = answer.get("up_seconds") if age is None else age
    price = cluster.hourly_usd / len(cluster.nodes)
    return {
        "name": node.name,
        "role": node.role,
        "address": node.address,
        "port": node.ssh_port,
        "state": state,
        "reason": reason,
        "profile": record.get("profile"),
        "versions": record.get("versions") or {},
        "cpu": record.get("cpu") or {},
        "load_is_shared": bool(answer.get("shared")),
        "memory_gb": node.memory_gb or answer.get("memory_total_gb"),
        **{key: answer.get(key) for key in _AS_ANSWERED},
        "job": {"id": job.get("id"), "state": job.get("state")} if job else None,
        "hourly_usd": round(price, 4),
        "age_seconds": age,
        "spent_usd": None if age is None else round(price * age / 3600, 4),
        "notice": answer.get("notice", ""),
        "disk_error": answer.get("disk_error", ""),
    }


def fitting(rows: list[list[str]], columns: int) -> tuple[list[list[str]], list[str]]:
    """Drop less needed columns until the table fits into `columns` characters (0: no limit); (table, dropped names)."""
    dropped: list[str] = []
    for name in _LESS_NEEDED:
        if not columns or max(map(len, table(rows).splitlines())) <= columns:
            break
        place = rows[0].index(name)
        rows = [[*row[:place], *row[place + 1 :]] for row in rows]
        dropped.append(name)
    return rows, dropped


def _state(result: Result, answer: Mapping[str, Any]) -> tuple[str, str]:
    """(state, detail); the state is ready, failed, booting, no node, unreachable or unknown."""
    if result.reason:
        return "unreachable", result.reason
    if result.exited == node_program.NO_PYTHON:
        return "no node", NEVER_BOOTSTRAPPED
    if not result.ok:
        return "unknown", result.why
    if answer["failed"]:
        return "failed", f"step {answer['failed'].get('step')}: {answer['failed'].get('reason')}"
    if answer["ready"] and answer["ready"].get("mode") != "bake":
        return "ready", ""
    if answer.get("bare"):
        return "no node", NEVER_BOOTSTRAPPED
    return "booting", f"step {answer['step']}" if answer["step"] else "the bootstrap has not begun"


def _row(node: Mapping[str, Any]) -> list[str]:
    torch, cores = node["versions"].get("torch"), node["cpu"].get("cores")
    features = [name for name in _FEATURES if node["cpu"].get(name)]
    used, limit = node["memory_used_gb"], node["memory_gb"]
    return [
        node["name"],
        node["address"] if node["port"] == 22 else f"{node['address']}:{node['port']}",
        node["state"],
        f"{node['profile']} torch {torch}" if torch else "-",
        f"{cores}x {' '.join(features) or 'no amx'}" if cores else "-",
        "-" if node["load"] is None else f"{node['load']:.2f}",
        "-" if used is None else gigabytes(used) + (f"/{gigabytes(limit)}" if limit else ""),
        "-" if node["disk_free_gb"] is None else f"{gigabytes(node['disk_free_gb'])} free",
        f"{node['job']['id']} {node['job']['state']}" if node["job"] else "-",
        f"${node['hourly_usd']:.2f}/h",
        _age(node["age_seconds"], node["up_seconds"]),
        "-" if node["spent_usd"] is None else f"${node['spent_usd']:.2f}",
        *_limits(node["limits"]),
    ]


def _age(age: float | None, up: float | None) -> str:
    """Time since the node's first boot; `2d (up 5m)` for one that has rebooted."""
    if age is None:
        return "-"
    if up is not None and duration(up) != duration(age) and age - up > _BOOT_SECONDS:
        return f"{duration(age)} (up {duration(up)})"
    return duration(age)


def _limits(limits: Mapping[str, Any] | None) -> tuple[str, str]:
    """(time until the node ends itself, idle time of the time allowed): `in 3h20m`, `12m of 60m`."""
    if not limits:
        return "-", "-"
    remaining = limits["expires_in_seconds"]
    ends = "-" if remaining is None else f"in {duration(remaining)}" if remaining > 0 else "now"
    if not limits["idle_minutes"]:
        return ends, "-"
    return ends, limits["used_by"] or f"{duration(limits['idle_seconds'])} of {limits['idle_minutes']}m"


def _spent(nodes: list[dict[str, Any]]) -> float:
    return round(sum(node["spent_usd"] or 0.0 for node in nodes), 4)


def _money(cluster: SshCluster, nodes: list[dict[str, Any]]) -> str:
    """What the cluster costs an hour, and has cost: the nodes' ages times today's price."""
    silent = [node["name"] for node in nodes if node["spent_usd"] is None]
    without = f", without {', '.join(silent)}, which may cost as well" if silent else ""
    return f"{cluster.name}: ${cluster.hourly_usd:.2f}/h, ${_spent(nodes):.2f} so far{without}"


def _of_queue(queue: Mapping[str, Any]) -> str:
    """`; queue p3dn: 1 of 2 nodes run, $31.21/h more`"""
    if not queue:
        return ""
    name, count, running = queue["name"], queue["nodes"], queue["running"]
    if running is None:
        return f"; queue {name}: Slurm does not say how many of its {count} nodes run, which cost more"
    return f"; queue {name}: {running} of {count} nodes run, ${queue['hourly_usd']:.2f}/h more"


def _next(nodes: list[dict[str, Any]]) -> str:
    states = {node["state"]: node["name"] for node in reversed(nodes)}
    if "gone" in states:
        return next_command(MEND) + "   (makes what is gone anew)"
    if "failed" in states:
        return next_command(f"fab ssh {states['failed']}   (log: /var/log/trainyard-bootstrap.log)")
    if "no node" in states:
        return next_command("fab bootstrap")
    return next_command("fab check" if {*states} <= {"ready"} else "fab wait")
