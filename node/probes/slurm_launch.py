"""On the head: runs a probe in a job of Slurm's, on every node that runs jobs, started by srun as training is.

Reads one line of JSON from stdin,

    {"id": ..., "cluster": an inventory, "seconds": 60, "per": "node" or "slot", "probe": ["COMMAND", ...]}

prints `{"event": "nodes", "names": [...]}`, the nodes in the order of the ranks, once Slurm has given them, passes the
probe's output through, and ends as node/probes/launch.py does; or it prints `{"event": "refused", "why": ...}`, if the
nodes are taken. If this program is killed, Slurm ends its job a minute after `seconds`.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from fabfile.launchers import SLURM, Launch, plans
from fabfile.launchers.program import SLOT, placed
from infra.inventory import Node, SshCluster, from_object
from node import launcher, scope
from node.job.spec import job_nodes
from node.probes import say, wait_for_operator
from node.slurm import queue
from node.slurm.allocation import hosts, nodes_of
from node.slurm.queue import SlurmError

AT_ONCE_S = 5
"""Seconds that the nodes may take to be given; a job that has them is not waited for."""
Spec = dict[str, Any]


def main(_argv: list[str]) -> None:
    """Run the probe that stdin asks for to its end."""
    spec: Spec = json.loads(sys.stdin.readline())
    cluster = from_object(spec["cluster"])
    assert isinstance(cluster, SshCluster)
    try:
        queue.ask(allocation(spec, cluster), seconds=AT_ONCE_S + queue.SECONDS)
        number, names = given(spec["id"])
    except SlurmError as error:
        cancel(spec["id"])
        say(event="refused", why=str(error))
        return
    threading.Thread(target=end_with_stdin, args=(spec["id"],), daemon=True).start()
    try:
        nodes = nodes_of(cluster, names)
        say(event="nodes", names=names)
        code, late = run(launch_of(spec, cluster, nodes), number, spec["seconds"])
    finally:
        cancel(spec["id"])
    say(event="end", exited=code, late=late)


def allocation(spec: Spec, cluster: SshCluster) -> list[str]:
    """salloc's command line: all nodes, each whole, now or not at all."""
    nodes = job_nodes(cluster)
    return [
        *("salloc", "--no-shell", f"--immediate={AT_ONCE_S}", f"--job-name={spec['id']}"),
        *("--exclusive", "--mem=0", f"--nodes={len(nodes)}"),
        f"--ntasks-per-node={nodes[0].slots}",
        f"--time={math.ceil(spec['seconds'] / 60) + 1}",
        *([f"--partition={cluster.queue.name}"] if cluster.queue else []),
        *([f"--gpus-per-node={nodes[0].gpus}"] if nodes[0].gpus else []),
    ]


def given(name: str) -> tuple[str, list[str]]:
    """Slurm's number of the job of this name, and its nodes. SlurmError."""
    answer = queue.ask(["squeue", "--noheader", f"--name={name}", "--format=%i %N"]).split()
    if len(answer) != 2:
        raise SlurmError("Slurm has ended the check's job")
    return answer[0], hosts(answer[1])


def launch_of(spec: Spec, cluster: SshCluster, nodes: tuple[Node, ...]) -> Launch:
    """The launch of the probe, as that of a job: a rank on each node, with all of its cores, or for each slot."""
    program = sys.argv[0]
    probe = tuple(word.replace("{program}", program) for word in spec["probe"])
    ranks = nodes if spec["per"] == SLOT else placed(nodes, spec["per"])
    return Launch(id=spec["id"], nodes=ranks, interface=cluster.interface, probe=probe, node_program=program)


def run(launch: Launch, number: str, seconds: float) -> tuple[int, bool]:
    """Run it in Slurm's job `number`; returns srun's exit code, and whether it took too long."""
    # The first of the nodes may be another than this one, where nobody can say which port is free.
    found = launcher.values(launch, Path(), began=0.0, port=random.choice(scope.PORTS))
    shell = plans.plan(SLURM, launch, found).shell
    started = subprocess.Popen(
        ["sh", "-c", shell],
        env={**os.environ, "SLURM_JOB_ID": number},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return started.wait(timeout=seconds), False
    except subprocess.TimeoutExpired:
        cancel(launch.id)
        return started.wait(), True


def cancel(name: str) -> None:
    """End the job of this name, with all that it runs. One that is over is no error."""
    with suppress(SlurmError):
        queue.ask(["scancel", f"--name={name}", "--me"])


def end_with_stdin(name: str) -> None:
    """Wait for the end of stdin (the operator is gone or needs no more), then end the job."""
    wait_for_operator()
    cancel(name)
