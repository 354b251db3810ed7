"""On the head: nccl-tests' all-reduce within each node, between every two nodes, and over all of them.

Reads one line of JSON from stdin, {"id": ..., "cluster": an inventory, "seconds": S, "pair_seconds": P}, and prints a
line of JSON per measurement as it comes:

    {"event": "nccl", "nodes": ["node1", "node2"], "bus": bytes/s, "network": "Libfabric", "provider": "efa", ...}

and `{"event": "end"}` last. Of the pairs, those are measured that fit into S seconds; a measurement may take P. All
ranks of a measurement are in a systemd scope of their own, which ends with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations, count
from pathlib import Path
from typing import Any

from fabfile.launchers import Launch
from infra.inventory import Node, SshCluster, from_object
from node import launcher
from node.job import cleanup
from node.probes import nccl_output, say, wait_for_operator

TESTS = Path("/opt/trainyard/nccl-tests")
PROGRAM = TESTS / "all_reduce_perf"
# Large enough for the bandwidth to count, not the latency; a node's memory holds it many times over.
OPTIONS = ("-b", "64M", "-e", "256M", "-f", "2", "-n", "10", "-w", "3", "-g", "1", "-c", "1")
# MPI only brings the ranks together: over TCP, with the libfabric of EFA, as a process can load only one.
MPI = ("I_MPI_OFI_LIBRARY_INTERNAL=0", "I_MPI_OFI_PROVIDER=tcp")
DEBUG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,ENV"}
"""NCCL then says which network it uses."""
SLACK_S = 5


def main(_argv: list[str]) -> None:
    """Measure what stdin asks for."""
    spec = json.loads(sys.stdin.readline())
    cluster = from_object(spec["cluster"])
    assert isinstance(cluster, SshCluster)
    unit = f"trainyard-{spec['id']}"
    threading.Thread(target=end_with_stdin, args=(unit,), daemon=True).start()
    seconds, number = spec["pair_seconds"], count()
    program = sys.argv[0]
    whole = Launch(
        id=spec["id"], nodes=cluster.nodes, interface=cluster.interface, probe=command(), node_program=program
    )

    def one(group: Sequence[Node]) -> None:
        found = measure(replace(whole, nodes=tuple(group)), f"{unit}-{next(number)}", seconds)
        say(event="nccl", nodes=[node.name for node in group], **found)

    # Within the nodes all at once, as they share nothing; between them one after the other.
    with ThreadPoolExecutor(max_workers=len(cluster.nodes)) as pool:
        list(pool.map(one, [[node] for node in cluster.nodes if node.slots > 1]))
    until = time.monotonic() + spec["seconds"]
    for group in between(cluster.nodes):
        if len(group) == len(cluster.nodes) or time.monotonic() + seconds / 4 < until:
            one(group)
    say(event="end")


def between(nodes: Sequence[Node]) -> Iterator[Sequence[Node]]:
    """All nodes together, then every pair: neighbours first, so that each node is in some pair even if not all of them
    are measured in their time."""
    if len(nodes) > 1:
        yield nodes
    if len(nodes) > 2:
        pairs = sorted(combinations(range(len(nodes)), 2), key=lambda pair: pair[1] - pair[0])
        yield from ([nodes[first], nodes[second]] for first, second in pairs)


def command() -> tuple[str, ...]:
    """The program with its libraries' paths, which are in a file beside it."""
    paths = (TESTS / "environment").read_text().split() if (TESTS / "environment").exists() else []
    preload = [f'{line}:"$LD_LIBRARY_PATH"' for line in paths]
    words = [*preload, *MPI, *(f"{name}={value}" for name, value in DEBUG.items())]
    return ("sh", "-c", f"exec env {' '.join(words)} {PROGRAM} {' '.join(OPTIONS)}")


def measure(launch: Launch, unit: str, seconds: float) -> dict[str, Any]:
    """One all-reduce; with `failed`, the reason, if it gave no result."""
    with tempfile.TemporaryDirectory(prefix="trainyard-check-") as folder:
        properties = [f"RuntimeMaxSec={int(seconds) + SLACK_S}"]
        started = launcher.start("mpirun", launch, Path(folder), unit, properties)
        try:
            output, _ = started.communicate(timeout=seconds)
            late = False
        except subprocess.TimeoutExpired:
            cleanup.kill(unit)
            output, _ = started.communicate()
            late = True
    lines = output.decode(errors="replace").splitlines()
    found = nccl_output.parse(lines)
    if found["bus"] is None:
        said = [line.strip() for line in lines if line.strip() and "NCCL INFO" not in line and line[0] != "#"]
        why = found["warning"] or (said[-1] if said else f"exit code {started.returncode}")
        found["failed"] = f"no result in {seconds:.0f} s" if late else why[:300]
    return found


def end_with_stdin(unit: str) -> None:
    """The operator is gone or needs no more: end what runs, and this program."""
    wait_for_operator()
    cleanup.kill(f"{unit}-*")
    os._exit(0)
