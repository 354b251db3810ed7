"""Judge NCCL's all-reduce on GPUs: is EFA used, is NVLink, and is either slow? Pure functions: no connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fabfile.check.launch import ProbeRun
from fabfile.check.network_rules import BAD, SLOW, broken_off, cleanup_warnings, rate
from fabfile.check.node_rules import AGAIN
from fabfile.check.session import Event
from fabfile.check.verdict import Problem, Verdict, judge, some
from infra.inventory import SshCluster

EFA_LOOK = (
    "fab run '/opt/amazon/efa/bin/fi_info -p efa' (nothing: no EFA interface), then the security group, which must let "
    "all traffic from itself in and to itself out"
)
NVLINK_LOOK = "fab run 'nvidia-smi nvlink --status'"
SLOW_LOOK = "fab check (again), then fab report of a job, or another node: fab destroy, fab up"


def nccl(cluster: SshCluster, run: ProbeRun) -> Verdict:
    """The verdict on all that was measured."""
    found = run.of("nccl")
    problems = [problem for event in found for problem in wrong(cluster, event)]
    problems += [failed(cluster, run)] if run.failed else []
    if not found and not run.failed:
        return Verdict("nccl", "pass", "one GPU: there is nothing to measure")
    return judge("nccl", [*problems, *cleanup_warnings(run)], "; ".join(good(cluster, found)))


def failed(cluster: SshCluster, run: ProbeRun) -> Problem:
    """Why there is no end of the measurement; where its ranks have spoken for themselves, which one is to blame."""
    if run.silent or run.of("error"):
        return broken_off(cluster, [node.name for node in cluster.nodes for _ in range(node.slots)], run)
    return Problem("fail", f"NCCL's all-reduce: {run.failed}", f"fab ssh {cluster.head.name}")


def wrong(cluster: SshCluster, event: Event) -> Iterator[Problem]:
    """What is wrong with one measurement, the cause before what follows from it."""
    names = event["nodes"]
    who = some(names, between=", ") if len(names) < len(cluster.nodes) or len(names) == 1 else f"all {len(names)} nodes"
    if event.get("failed"):
        missing = "not found" in event["failed"] or "No such file" in event["failed"]
        yield Problem("fail", f"{who}: {event['failed']}", AGAIN if missing else f"fab ssh {names[0]}")
        return
    if event["wrong"]:
        text = f"{who}: the sum is wrong in {event['wrong']} places"
        yield Problem("fail", text, "fab run 'sudo dmesg | grep -i xid'")
    nodes = [cluster.node(name) for name in names]
    if len(names) == 1:
        expected, off = nodes[0].nvlink_gb_per_s * 1e9, "SHM" in event["ways"]
        way, look = "NVLink", NVLINK_LOOK
        fault = "NVLink is off: the GPUs talk through the machine's memory"
    else:
        expected, off = min(node.efa_gbps for node in nodes) / 8 * 1e9, not over_efa(event)
        way, look = "EFA", EFA_LOOK
        fault = f"EFA is off: {network(event)}"
    if not expected:
        return  # nothing is promised
    at = f"{rate(event['bus'])} of {rate(expected)}"
    if off:
        yield Problem("fail", f"{who}: {fault}, {at}", look)
    elif event["bus"] < SLOW * expected:
        yield Problem("fail" if event["bus"] < BAD * expected else "warn", f"{who}: slow over {way}: {at}", SLOW_LOOK)


def over_efa(event: Event) -> bool:
    """Whether NCCL's traffic between nodes went over EFA, by what it said itself."""
    return event["provider"] == "efa" or (not event["provider"] and "Libfabric" in event["network"])


def network(event: Event) -> str:
    """The network that was used instead of EFA, in words."""
    if event["provider"]:
        return f"TCP (libfabric's provider is {event['provider']})"
    if event["network"] == "Socket":
        return "TCP (NCCL uses its sockets)"
    return f"NCCL uses {event['network']}" if event["network"] else "NCCL did not say which network it uses"


def good(cluster: SshCluster, found: Sequence[Event]) -> Iterator[str]:
    """What was measured, in words."""
    count = len(cluster.nodes)
    gpus = sum(node.slots for node in cluster.nodes)
    if within := bus(found, 1):
        yield f"within a node {spread(within)}"
    if count > 1 and (over_all := bus(found, count)):
        yield f"all-reduce over {gpus} GPUs {spread(over_all)}"
    if pairs := bus(found, 2) if count > 2 else []:
        todo = count * (count - 1) // 2
        part = f"{len(pairs)} pairs" if len(pairs) == todo else f"{len(pairs)} of {todo} pairs, measured in their time,"
        yield f"{part} {spread(pairs)}"
    if count > 1:
        efa = all(over_efa(event) for event in found if len(event["nodes"]) > 1)
        yield "over EFA" if efa else "over TCP (these machines have no EFA)"
    yield "by torch's all-reduce" if any("rank" in event for event in found) else "by nccl-tests"


def bus(found: Sequence[Event], nodes: int) -> list[float]:
    """Bus bandwidths of the measurements of so many nodes."""
    return [event["bus"] for event in found if len(event["nodes"]) == nodes and event["bus"] is not None]


def spread(values: Sequence[float]) -> str:
    """The least and the most."""
    least, most = rate(min(values)), rate(max(values))
    return f"bus {least}" if least == most else f"bus {least} to {most}"
