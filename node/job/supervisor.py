"""Supervises a job: waits for its nodes, then makes attempts until the job has ended.

Over SSH it is the job's service on the head. Whatever ends it, systemd then runs `aftermath`: it kills what is left on
the nodes and records the end. With Slurm it is the batch script, on the first of the nodes that Slurm has chosen: Slurm
kills what is left, and node/slurm/records.py records the end.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

from fabfile.launchers import Launch
from node.job import files, job_table, submit
from node.job.aftermath import sweep, warn
from node.job.attempt import Attempt
from node.job.diagnosis import Outcome
from node.job.files import Record
from node.job.log import Log
from node.job.spec import of_job
from node.job.time_limit import TimeLimit
from node.slurm import continuation, step
from node.slurm.allocation import Allocation

QUEUE_POLL = 0.5
STOPPED = "stopped"
"""Start of the trainer's last line if it ended because it was asked to, and not because it was done just then."""


class Supervisor:
    """The program of a job's service."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.spec = spec = of_job(run_dir)
        self.slurm = Allocation(spec) if spec.is_slurms else None
        nodes = self.slurm.nodes if self.slurm else spec.cluster.nodes
        self.log = Log(run_dir / "log", nodes[0].name)
        self._now = False
        self._dead: set[str] = set()  # nodes of the last attempt that cannot be reached; known only with Slurm
        self.limit = TimeLimit(spec.time_limit, time.monotonic())
        self.launch = Launch(
            id=spec.id,
            nodes=nodes,
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
        signal.signal(signal.SIGUSR1, self._warned)
        if self.slurm and not self.slurm.is_current(self.run_dir):
            return
        if not self._wait_for_nodes():
            self._over("CANCELLED", "stopped before it started", 1)
            return
        before = files.read(self.run_dir / "state.json")
        launch = self.launch.on(self.launch.nodes, before["attempt"] + 1)
        restarts = before.get("restarts_left", self.spec.restarts) - bool(self.slurm and self.slurm.requeued)
        if restarts < 0:
            self._over("FAILED", "requeued by Slurm, with no restart left", 1)
            return
        while True:
            attempt, verdict = self._attempt(launch, restarts)
            unusable = self._record(verdict, attempt) | attempt.expiry.taken
            nodes = tuple(node for node in launch.nodes if node.name not in unusable)
            may_go_on = self._may_go_on(verdict, attempt) and restarts > 0
            if may_go_on and self.slurm and unusable & {node.name for node in launch.nodes}:
                continuation.go_on(self.run_dir, self.slurm, self.log, unusable)
                self._tell_down()
                return
            if not may_go_on or launch.nodes[0] not in nodes:
                break
            restarts -= 1
            launch = launch.on(nodes, launch.attempt + 1)
            self.log.say(f"restart from the last checkpoint on {len(nodes)} nodes; {restarts} more allowed")
        self._ended(verdict, attempt)
        self._tell_down()

    def _attempt(self, launch: Launch, restarts: int) -> tuple[Attempt, Outcome]:
        state = self._running(launch, restarts)
        began = state["started"] + state.get("paused", 0.0)
        attempt = Attempt(self.spec.launcher, launch, self.spec.timeout, self.log, self.asked, began)
        return attempt, attempt.run()

    def _ended(self, verdict: Outcome, attempt: Attempt) -> None:
        """Record the end of the job with its last attempt."""
        if attempt.stopping and (verdict.code or verdict.reason.startswith(STOPPED)):
            state, reason = (
                "CANCELLED",
                "; ".join(filter(None, (attempt.expiry.reason, self.limit.reason, verdict.reason))),
            )
            if self.slurm and self._now:
                state, reason = self.slurm.ended_by()
            self._over(state, reason, 1)
        elif verdict.code:
            # Slurm then ends the sruns, which looks as if the nodes were cut off.
            down = self.slurm.taken_for_dead() if self.slurm else ""
            self._over("FAILED", down or verdict.reason, verdict.code)
        elif verdict.reason.startswith(STOPPED):  # as their SIGTERM says; nobody has asked us for it
            state, reason = "CANCELLED", "its ranks were sent SIGTERM"
            if self.slurm:
                state, reason = self.slurm.ended_by()
            self._over(state, f"{reason}; {verdict.reason}", 1)
        else:
            self._over("SUCCEEDED", "", 0)

    def _tell_down(self) -> None:
        """Tell Slurm which nodes are dead. The last thing to do: Slurm then ends this job of its."""
        if not self.slurm or not self._dead:
            return
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        names = ", ".join(sorted(self._dead))
        if why := self.slurm.tell_down(self._dead):
            self.log.say(f"warning: Slurm was not told that {names} is down: {why}")

    def _may_go_on(self, verdict: Outcome, attempt: Attempt) -> bool:
        """Whether another attempt may follow: this one failed, or was stopped because a cloud takes a node back."""
        if not attempt.stopping:
            return verdict.code == 1
        unfinished = verdict.code == 1 or verdict.reason.startswith(STOPPED)
        cause = attempt.expiry.cause
        return unfinished and cause is not None and cause.by_cloud and not self.asked()

    def asked(self) -> str:
        """What the user has asked for: "" (nothing), "stop" (with a checkpoint) or "now"."""
        how = str(files.read(self.run_dir / "stop.json").get("how", ""))
        return "now" if self._now else how or self.limit.asked(time.monotonic())

    def _terminated(self, _signal: int, _frame: object) -> None:
        self._now = True

    def _warned(self, _signal: int, _frame: object) -> None:
        """Slurm ends the job soon, at a limit of its own."""
        self.limit.end_now()

    def _wait_for_nodes(self) -> bool:
        """Wait until no job with a lower number holds any of the nodes; False if the user stopped the job meanwhile."""
        names, runs, waits_for = set(self.spec.node_names), self.run_dir.parent, ""
        while self.spec.queue and not self.slurm and not self.asked():
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

    def _running(self, launch: Launch, restarts: int) -> Record:
        state, now = files.read(self.run_dir / "state.json"), time.time()
        slurms = {"restarts_left": restarts, "queued": False, "reason": ""} if self.slurm else {}
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
            **slurms,
        )

    def _record(self, verdict: Outcome, attempt: Attempt) -> set[str]:
        """Record how the attempt ended; returns the nodes that the next attempt cannot use."""
        if verdict.code:
            self.log.say(f"error: {verdict.reason}")
        if attempt.first_step:
            job_table.set_state(self.run_dir, first_step=attempt.first_step)
        # The keepers of these nodes have not confirmed that all processes are gone: ask over a new connection.
        unknown = attempt.unknown
        if self.slurm:
            # Not after Slurm has ended this job: it runs no step for it any more, and kills what is left by itself.
            unknown = [] if self._now else unknown
            self._dead = self.slurm.dead(unknown)
        remaining = {node: ["not known: it does not answer"] for node in self._dead}
        asked = [node for node in unknown if node not in self._dead]
        remaining |= sweep(self.launch.id, asked, self.spec.program, slurms=self.slurm is not None)
        warn(self.log, {**attempt.remaining, **remaining})
        return set(remaining)

    def _over(self, state: str, reason: str, code: int) -> None:
        if state == "PENDING":  # it is requeued: the next one goes on with the record
            self.log.say(f"{self.launch.id}: {reason}")
            return
        self.log.say(f"{self.launch.id} {state}{': ' + reason if reason else ''}")
        self.log.flush(5.0)
        job_table.over(self.run_dir, state, reason, code)


def main(argv: list[str]) -> int:
    """`supervise RUN_DIR`."""
    supervisor = Supervisor(Path(argv[0]))
    if supervisor.slurm is None:
        supervisor.run()
        return 0
    step.signalled_with_slurmstepd(signal.SIGTERM)
    submit.write_secrets(supervisor.spec.id, supervisor.slurm.secrets)
    try:
        supervisor.run()
    finally:
        files.secrets_of(supervisor.spec.id).unlink(missing_ok=True)
    return 0
