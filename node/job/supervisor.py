"""The job's service on the head: waits for its nodes, then makes attempts until the job has ended.

Whatever ends this program, systemd then runs `aftermath`: it kills what is left on the nodes and records the end.
"""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import TimeoutExpired, run

from fabfile.launchers import SYSTEM_PYTHON, Launch
from node.job import files, job_table
from node.job.attempt import Attempt
from node.job.diagnosis import Outcome, signal_name
from node.job.files import Record
from node.job.log import Log
from node.job.spec import of_job
from node.scope import STRICT

QUEUE_POLL = 0.5
STOPPED = "stopped"
"""Start of the trainer's last line if it ended because it was asked to, and not because it was done just then."""
SWEEP = 5.0
"""Seconds that a node has to kill a job's processes and answer."""


class Supervisor:
    """The program of a job's service."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.spec = spec = of_job(run_dir)
        self.log = Log(run_dir / "log", spec.cluster.head.name)
        self._now = False
        self.launch = Launch(
            id=spec.id,
            nodes=spec.cluster.nodes,
            run_dir=str(run_dir),
            code=spec.code,
            interface=spec.cluster.interface,
            threads=spec.threads,
            usd_per_hour=spec.price_per_hour,
            resume=bool(spec.resume),
        )

    def run(self) -> None:
        """Wait for the nodes, make attempts until the job has ended, and record its end in state.json."""
        signal.signal(signal.SIGTERM, self._terminated)
        if not self._wait_for_nodes():
            self._over("CANCELLED", "stopped before it started", 1)
            return
        before = files.read(self.run_dir / "state.json")
        launch = self.launch.on(self.launch.nodes, before["attempt"] + 1)
        restarts = self.spec.restarts
        while True:
            state = self._running(launch)
            began = state["started"] + state.get("paused", 0.0)
            attempt = Attempt(self.spec.launcher, launch, self.spec.timeout, self.log, self.asked, began)
            verdict = attempt.run()
            unusable = self._record(verdict, attempt) | attempt.expiry.taken
            nodes = tuple(node for node in launch.nodes if node.name not in unusable)
            if not self._may_go_on(verdict, attempt) or not restarts or launch.nodes[0] not in nodes:
                break
            restarts -= 1
            launch = launch.on(nodes, launch.attempt + 1)
            self.log.say(f"restart from the last checkpoint on {len(nodes)} nodes; {restarts} more allowed")
        if attempt.stopping and (verdict.code or verdict.reason.startswith(STOPPED)):
            self._over("CANCELLED", "; ".join(filter(None, (attempt.expiry.reason, verdict.reason))), 1)
        elif verdict.code:
            self._over("FAILED", verdict.reason, verdict.code)
        else:
            self._over("SUCCEEDED", "", 0)

    def _may_go_on(self, verdict: Outcome, attempt: Attempt) -> bool:
        """Whether another attempt may follow: this one failed, or was stopped because a cloud takes a node back."""
        if not attempt.stopping:
            return verdict.code == 1
        unfinished = verdict.code == 1 or verdict.reason.startswith(STOPPED)
        cause = attempt.expiry.cause
        return unfinished and cause is not None and cause.by_cloud and not self.asked()

    def asked(self) -> str:
        """What the user has asked for: "" (nothing), "stop" (with a checkpoint) or "now"."""
        return "now" if self._now else str(files.read(self.run_dir / "stop.json").get("how", ""))

    def _terminated(self, _signal: int, _frame: object) -> None:
        self._now = True

    def _wait_for_nodes(self) -> bool:
        """Wait until no job with a lower number holds any of the nodes; False if the user stopped the job meanwhile."""
        names, runs, waits_for = set(self.spec.node_names), self.run_dir.parent, ""
        while self.spec.queue and not self.asked():
            with job_table.locked(runs):
                before = job_table.in_the_way(runs, names, self.launch.id)
                if not before:
                    job_table.set_state(self.run_dir, queued=False)
                    break
            if waits_for != before[0]["id"]:
                waits_for = before[0]["id"]
                self.log.say(f"waiting for {waits_for}")
            time.sleep(QUEUE_POLL)
        return not self.asked()

    def _running(self, launch: Launch) -> Record:
        state, now = files.read(self.run_dir / "state.json"), time.time()
        before = state["ended_before"] if state["started"] else None
        return job_table.set_state(
            self.run_dir,
            state="RUNNING",
            attempt=launch.attempt,
            nodes=[node.name for node in launch.nodes],
            started=state["started"] or now,
            # The time between a job's end and its resumption costs nothing.
            paused=state["paused"] + (now - before if before else 0.0),
            ended_before=None,
        )

    def _record(self, verdict: Outcome, attempt: Attempt) -> set[str]:
        """Record how the attempt ended; returns the nodes that the next attempt cannot use."""
        if verdict.code:
            self.log.say(f"error: {verdict.reason}")
        if attempt.first_step:
            job_table.set_state(self.run_dir, first_step=attempt.first_step)
        # The keepers of these nodes have not confirmed that all processes are gone: ask over a new connection.
        remaining = sweep(self.launch.id, attempt.unknown, self.spec.program)
        warn(self.log, {**attempt.remaining, **remaining})
        return set(remaining)

    def _over(self, state: str, reason: str, code: int) -> None:
        self.log.say(f"{self.launch.id} {state}{': ' + reason if reason else ''}")
        self.log.flush(5.0)
        job_table.over(self.run_dir, state, reason, code)


def warn(log: Log, alive: dict[str, list[str]]) -> None:
    """Write to the job's log what could not be killed, by node."""
    for node, what in alive.items():
        log.say(f"warning: left on {node}: {'; '.join(what)}")


def main(argv: list[str]) -> int:
    """`supervise RUN_DIR`."""
    Supervisor(Path(argv[0])).run()
    return 0


def aftermath(argv: list[str]) -> int:
    """`aftermath RUN_DIR`: runs after the service, whatever ended it. Removes the job's secrets from the head. If the
    record has no end, kills the job's processes on all nodes and records FAILED. Returns 0."""
    run_dir = Path(argv[0])
    files.secrets_of(run_dir.name).unlink(missing_ok=True)
    if files.read(run_dir / "state.json")["state"] in files.OVER:
        return 0
    spec = of_job(run_dir)
    found = sweep(spec.id, spec.node_names, spec.program)
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


def sweep(job: str, nodes: list[str], code: str) -> dict[str, list[str]]:
    """Kill a job's remaining processes on all nodes at once; returns by node what could not be killed, or why that is
    not known."""

    def one(node: str) -> list[str]:
        argv = ["ssh", "-n", "-x", *STRICT, node, f"{SYSTEM_PYTHON} -I {code} sweep {job}"]
        try:
            done = run(argv, capture_output=True, text=True, timeout=SWEEP)
        except TimeoutExpired:
            return ["not known: it does not answer"]
        if done.returncode != 0:
            return [f"not known: {(done.stderr.strip() or 'no answer').splitlines()[-1]}"]
        return list(json.loads(done.stdout)["alive"])

    with ThreadPoolExecutor(max(1, len(nodes))) as pool:
        return {node: what for node, what in zip(nodes, pool.map(one, nodes), strict=True) if what}
