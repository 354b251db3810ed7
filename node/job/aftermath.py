"""What follows a job or an attempt at it: the processes that are left on its nodes, and an end that nobody recorded."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import TimeoutExpired, run

from fabfile.launchers import SYSTEM_PYTHON
from node.job import files, job_table
from node.job.diagnosis import signal_name
from node.job.log import Log
from node.job.spec import of_job
from node.scope import STRICT
from node.slurm import step

SWEEP = 5.0
"""Seconds that a node has to kill a job's processes and answer."""


def main(argv: list[str]) -> int:
    """`aftermath RUN_DIR`: runs after the service, whatever ended it. Removes the job's secrets from the head. If the
    record has no end, kills the job's processes on all nodes and records FAILED. Returns 0."""
    run_dir = Path(argv[0])
    files.secrets_of(run_dir.name).unlink(missing_ok=True)
    if files.read(run_dir / "state.json")["state"] in files.OVER:
        return 0
    spec = of_job(run_dir)
    found = sweep(spec.id, spec.node_names, spec.node_program)
    reason = f"its launcher on the head {_how()}"
    log = Log(run_dir / "log", spec.cluster.head.name)
    log.say(f"error: {reason}")
    warn(log, found)
    log.say(f"{spec.id} FAILED: {reason}")
    job_table.over(run_dir, "FAILED", reason, 1)
    return 0


def _how() -> str:
    """How the service ended, from the variables that systemd sets for ExecStopPost."""
    status = os.environ.get("EXIT_STATUS", "")
    if os.environ.get("EXIT_CODE") in ("killed", "dumped"):
        name = signal_name(int(status)) if status.isdigit() else f"SIG{status.removeprefix('SIG')}"
        return f"was killed by {name}"
    return f"ended with exit code {status}; why: journalctl -u trainyard-job-*"


def sweep(job: str, nodes: list[str], code: str, *, slurms: bool = False) -> dict[str, list[str]]:
    """Kill a job's remaining processes on all nodes at once; returns by node what could not be killed, or why that is
    not known. `slurms`: from within a job of Slurm's, whose nodes are reached through Slurm."""

    def one(node: str) -> list[str]:
        argv = ["ssh", "-n", "-x", *STRICT, node, f"{SYSTEM_PYTHON} -I {code} sweep {job}"]
        if slurms:
            argv = step.on(node, code, ["sweep", job])
        try:
            done = run(argv, capture_output=True, text=True, timeout=SWEEP)
        except TimeoutExpired:
            return ["not known: it does not answer"]
        if done.returncode != 0:
            return [f"not known: {(done.stderr.strip() or 'no answer').splitlines()[-1]}"]
        return list(json.loads(done.stdout)["alive"])

    with ThreadPoolExecutor(max(1, len(nodes))) as pool:
        return {node: what for node, what in zip(nodes, pool.map(one, nodes), strict=True) if what}


def warn(log: Log, alive: dict[str, list[str]]) -> None:
    """Write to the job's log what could not be killed, by node."""
    for node, what in alive.items():
        log.say(f"warning: left on {node}: {'; '.join(what)}")
