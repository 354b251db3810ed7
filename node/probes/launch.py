"""On the head: runs a probe on every node with the launcher that starts training, and kills it after a time limit.

Reads one line of JSON from stdin,

    {"id": ..., "cluster": an inventory, "seconds": 60, "probe": ["COMMAND", "ARGUMENT", ...]}

and passes the probe's output through; {program} in a word of `probe` stands for the path of this program. The last line
is `{"event": "end", "exited": code, "late": bool}`. There is one rank per node. If this program dies, systemd kills the
ranks SLACK_S after `seconds`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from fabfile.launchers import Launch
from infra.inventory import SshCluster, from_object
from node import launcher
from node.job import cleanup
from node.probes import wait_for_operator

SLACK_S = 5
"""Seconds after the probe's time limit at which systemd kills what is left of it."""

Spec = dict[str, Any]


def main(_argv: list[str]) -> None:
    """Run the probe that stdin asks for to its end."""
    spec: Spec = json.loads(sys.stdin.readline())
    launch, unit = launch_of(spec, sys.argv[0]), f"trainyard-{spec['id']}"
    with tempfile.TemporaryDirectory(prefix="trainyard-check-") as folder:
        properties = [f"RuntimeMaxSec={spec['seconds'] + SLACK_S}"]
        started = launcher.start("mpirun", launch, Path(folder), unit, properties, output=None)
        threading.Thread(target=end_with_stdin, args=(unit,), daemon=True).start()
        late = False
        try:
            started.wait(timeout=spec["seconds"])
        except subprocess.TimeoutExpired:
            late = True
            cleanup.kill(unit)
            started.wait()
    print(json.dumps({"event": "end", "exited": started.returncode, "late": late}), flush=True)


def launch_of(spec: Spec, program: str) -> Launch:
    """The launch of a probe: like that of a job with one rank per node, which has all of the node's cores."""
    cluster = from_object(spec["cluster"])
    assert isinstance(cluster, SshCluster)
    nodes = tuple(replace(node, slots=1, cores_per_slot=node.slots * node.cores_per_slot) for node in cluster.nodes)
    probe = tuple(word.replace("{program}", program) for word in spec["probe"])
    return Launch(id=spec["id"], nodes=nodes, interface=cluster.interface, probe=probe, node_program=program)


def end_with_stdin(unit: str) -> None:
    """Wait for the end of stdin (the operator is gone or needs no more), then kill the probe's scope on the head."""
    wait_for_operator()
    cleanup.kill(unit)
