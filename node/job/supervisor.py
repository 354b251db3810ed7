"""Supervises a job: waits for its machines, then makes attempts until the job has ended.

Over SSH it is the job's service on the head. Whatever ends it, systemd then runs `aftermath`: it kills what is left on
the nodes and records the end. With Slurm it is the batch script, on the first of the nodes that Slurm has chosen: Slurm
kills what is left, and node/slurm/records.py records the end. On Kubernetes it is a part of the job's first pod, which
records its end (node/kubernetes/pod.py). What differs among them is in node/job/machines.py.
"""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

from fabfile.launchers import KUBERNETES, SLURM, Launch
from node.job import endings, files, job_table, managed, places
from node.job.aftermath import warn
from node.job.attempt import Attempt
from node.job.diagnosis import STOPPED, Outcome
from node.job.endings import Ending
from node.job.expiry import End
from node.job.files import Record
from node.job.log import Log
from node.job.machines import Machines, OwnMachines
from node.job.spec import JobSpec, of_job
from node.job.time_limit import TimeLimit
from node.kubernetes.machines import PodMachines
from node.slurm.machines import SlurmMachines


def machines_of(spec: JobSpec, run_dir: Path) -> Machines:
    """The machines of a job, by what has them."""
    if spec.launcher == SLURM:
        return SlurmMachines(spec, run_dir)
    if spec.launcher == KUBERNETES:
        return PodMachines(spec, run_dir)
    return OwnMachines(spec, run_dir)


class Supervisor:
    """The program of a job's service."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.spec = spec = of_job(run_dir)
        self.machines = machines_of(spec, run_dir)
        self.log = Log(run_dir / "log", self.machines.nodes[0].name)
        self._now = False
        self._decisions = managed.Relay(run_dir, self.log.say)
        self.limit = TimeLimit(0.0, time.monotonic())  # until its machines are there
        self.launch = Launch(
            id=spec.id,
            nodes=self.machines.nodes,
            run_dir=str(run_dir),
            code=spec.code,
            interface=spec.cluster.interface,
            threads=spec.threads,
            elastic=spec.elastic,
            usd_per_hour=spec.price_per_hour,
            resume=bool(spec.resume),
            program=spec.program,
            shared_dir=spec.cluster.shared_dir,
        )

    def run(self) -> None:
        """Wait for the machines, make attempts until the job has ended, and record its end in state.json."""
        signal.signal(signal.SIGTERM, self._terminated)
        signal.signal(signal.SIGUSR1, self._warned)
        if not self.machines.is_current():
            return
        self._run()
        self.machines.ended(self.log)

    def _run(self) -> None:
        self.machines.wait(self.asked, self.log)
        if self.asked():
            self._over(Ending("CANCELLED", "stopped before it started", self._stopped_by()), 1)
            return
        before = files.read(self.run_dir / "state.json")
        self.limit = TimeLimit(self.spec.time_limit, time.monotonic() - _since_start(before))
        lost = self.machines.lost(before)
        if lost:
            self.log.say(f"error: {lost}")
        restarts = before.get("restarts_left", self.spec.restarts) - bool(lost)
        if endings.WANT_OF_MEMORY in lost and self._restarts_are_for_losses():
            self._over(Ending("FAILED", lost, endings.PROGRAM), 1)
            return
        if restarts < 0:
            self._over(Ending("FAILED", f"{lost}, with no restart left"), 1)
            return
        self._attempts(self.launch.on(self.machines.nodes, before["attempt"] + 1), restarts)

    def _attempts(self, launch: Launch, restarts: int) -> None:
        """Make attempts, the first as `launch` says, until the job is over or goes on elsewhere."""
        while True:
            attempt, verdict = self._attempt(launch, restarts)
            restarts = attempt.worlds.restarts if attempt.worlds else restarts
            unusable = self._record(verdict, attempt) | attempt.expiry.taken
            resize = managed.wanted(self.run_dir) if self._may_be_resized(verdict, attempt) else None
            if resize is not None and (attempt.stopping or restarts > 0):
                managed.done(self.run_dir)
                nodes = self.machines.resized(unusable | resize, self.asked, self.log)
                restarts -= not attempt.stopping  # it failed, as it may on the very node that it is to leave
            elif self._may_go_on(verdict, attempt) and restarts > 0:
                nodes = self.machines.next(launch.nodes, unusable, self.asked, self.log)
                restarts -= 1
            else:
                break
            if nodes is None:
                return
            if not nodes:
                self._none_left(verdict, attempt)
                return
            launch = launch.on(nodes, launch.attempt + 1)
            what = "restart" if resize is None else "going on"
            what += "" if launch.program else " from the last checkpoint"
            self.log.say(f"{what} on {len(nodes)} nodes; {restarts} more allowed")
        self._ended(verdict, attempt)

    def _attempt(self, launch: Launch, restarts: int) -> tuple[Attempt, Outcome]:
        state = self._running(launch, restarts)
        began = state["started"] + state.get("paused", 0.0)
        of_log = (self.spec.timeout, self.log, self._ask, began)
        attempt = Attempt(places.launcher(self.spec, launch.nodes), self.machines, launch, *of_log, restarts)
        verdict = attempt.run()
        if verdict.cut_off and (why := self.machines.why(verdict.cut_off, has_gone=True)):
            verdict = replace(verdict, reason=f"{verdict.reason}; {why}", by_program=endings.WANT_OF_MEMORY in why)
        return attempt, verdict

    def _none_left(self, verdict: Outcome, attempt: Attempt) -> None:
        """Record the end of a job that would have gone on, but that has no node for it. One that was stopped only to
        be moved has been cancelled by nobody."""
        if attempt.stopping and attempt.expiry.cause is None and not self.asked():
            self._over(Ending("FAILED", f"no node is left to go on with; {verdict.reason}"), 1)
        else:
            self._ended(verdict, attempt)

    def _ended(self, verdict: Outcome, attempt: Attempt) -> None:
        """Record the end of the job with its last attempt."""
        if attempt.stopping and (verdict.code or verdict.reason.startswith(STOPPED)):
            why = "; ".join(filter(None, (attempt.expiry.reason, self.limit.reason, verdict.reason)))
            known = self.machines.asked_to_end() if self._now else None
            self._over(known or Ending("CANCELLED", why, self._stopped_by(attempt.expiry.cause)), 1)
        elif verdict.code and (why := self.machines.why_failed()):
            self._over(Ending("FAILED", why), verdict.program_code or verdict.code)
        elif verdict.code:
            by = endings.PROGRAM if verdict.by_program else endings.MACHINES
            self._over(Ending("FAILED", verdict.reason, by), verdict.program_code or verdict.code)
        elif verdict.reason.startswith(STOPPED):  # as their SIGTERM says; nobody has asked us for it
            known = self.machines.asked_to_end() or Ending("CANCELLED", "its ranks were sent SIGTERM")
            self._over(known._replace(reason=f"{known.reason}; {verdict.reason}"), 1)
        else:
            self._over(Ending("SUCCEEDED", ""), 0)

    def _stopped_by(self, cause: End | None = None) -> str:
        """Who has ended a job that was stopped: somebody, at once or by a limit of its time or of a node's, unless it
        was because of a cloud that takes a node, or of a signal that no request of a user's comes with, as when the
        head is shut down. `cause`: the end of the node for which it was stopped."""
        wished = (self.run_dir / "stop.json").exists() or self.limit.reason or (cause and not cause.by_cloud)
        return endings.SOMEBODY if wished else endings.MACHINES

    def _may_go_on(self, verdict: Outcome, attempt: Attempt) -> bool:
        """Whether another attempt may follow: this one failed, or was stopped because a cloud takes a node back. The
        restarts that nobody has asked for are not for what its program would do again."""
        if not attempt.stopping:
            return verdict.code == 1 and not (verdict.by_program and self._restarts_are_for_losses())
        unfinished = verdict.code == 1 or verdict.reason.startswith(STOPPED)
        cause = attempt.expiry.cause
        return unfinished and cause is not None and cause.by_cloud and not self.asked()

    def _restarts_are_for_losses(self) -> bool:
        """Whether they are for its machines' sake alone: of a managed job, and where they are the default."""
        return self.spec.after_losses_only or managed.is_held(self.run_dir)

    def _may_be_resized(self, verdict: Outcome, attempt: Attempt) -> bool:
        """Whether the attempt has ended unfinished, and nobody wants the job to end."""
        unfinished = verdict.code == 1 or verdict.reason.startswith(STOPPED)
        return unfinished and attempt.expiry.cause is None and not self.asked()

    def _ask(self) -> str:
        """What an attempt is asked for: as `asked`, and to stop if the job is to go on on other nodes."""
        return self.asked() or ("" if managed.wanted(self.run_dir) is None else "stop")

    def asked(self) -> str:
        """What the user has asked for: "" (nothing), "stop" (with a checkpoint) or "now"."""
        self._decisions.look()
        how = str(files.read(self.run_dir / "stop.json").get("how", ""))
        return "now" if self._now else how or self.limit.asked(time.monotonic())

    def _terminated(self, _signal: int, _frame: object) -> None:
        self._now = True

    def _warned(self, _signal: int, _frame: object) -> None:
        """Slurm ends the job soon, at a limit of its own."""
        self.limit.end_now()

    def _running(self, launch: Launch, restarts: int) -> Record:
        state, now = files.read(self.run_dir / "state.json"), time.time()
        before, names = state["ended_before"] if state["started"] else None, [node.name for node in launch.nodes]
        return job_table.set_state(
            self.run_dir,
            state="RUNNING",
            attempt=launch.attempt,
            nodes=names,
            ran_on=names,  # stays when it is resumed and waits: these have a program's directory
            started=state["started"] or now,
            # The time between a job's end and its resumption costs nothing.
            paused=state["paused"] + (now - before if before else 0.0),
            ended_before=None,
            restarts_left=restarts,
            away=[],
            queued=False,
            reason="",
        )

    def _record(self, verdict: Outcome, attempt: Attempt) -> set[str]:
        """Record how the attempt ended; returns the nodes that the next attempt cannot use."""
        if verdict.code:
            self.log.say(f"error: {verdict.reason}")
        if attempt.first_step:
            job_table.set_state(self.run_dir, first_step=attempt.first_step)
        # The keepers of these nodes have not confirmed that all processes are gone.
        remaining = self.machines.left(self.launch.id, attempt.unknown, ending=self._now)
        warn(self.log, {**attempt.remaining, **remaining})
        return set(remaining)

    def _over(self, ending: Ending, code: int) -> None:
        state, reason, by = ending
        if state == "PENDING":  # it is requeued: the next one goes on with the record
            self.log.say(f"{self.launch.id}: {reason}")
            return
        self.log.say(f"{self.launch.id} {state}{': ' + reason if reason else ''}")
        self.log.flush(5.0)
        job_table.over(self.run_dir, state, reason, code, by)


def _since_start(record: Record) -> float:
    """Seconds that a job has run whose supervisor was lost; 0 for one that begins now, or is resumed."""
    if record["state"] != "RUNNING":
        return 0.0
    return max(0.0, time.time() - float(record["started"]) - float(record["paused"]))


def main(argv: list[str]) -> int:
    """`supervise RUN_DIR`."""
    supervisor = Supervisor(Path(argv[0]))
    with supervisor.machines:
        supervisor.run()
    return 0
