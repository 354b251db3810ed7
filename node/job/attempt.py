"""One attempt at a job, on the head: starts keepers and launcher, and watches until all processes have ended."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from fabfile.launchers import KEEPERS, KUBERNETES, SLURM, Launch, plans
from node import folders, launcher
from node.job import files, job_table, pmi, program_files, usage
from node.job.diagnosis import Diagnosis, Outcome
from node.job.elastic import Worlds
from node.job.expiry import Expiry
from node.job.files import LEASE
from node.job.keeper_connection import Link, NodeEvent, arrived
from node.job.log import Log
from node.job.machines import Asked, Machines
from node.job.spec import keeper_spec

ANSWER = 25.0
"""Seconds without a word after which a node's keeper is not waited for."""
END = 8.0
"""Seconds for all nodes to kill their ranks and report what still runs."""
_PROGRAMS = {SLURM: "srun", KUBERNETES: "", KEEPERS: ""}
"""What starts the ranks, for messages, where that is not named as the launcher is. Empty: the keepers do."""


class Attempt:
    """One attempt, from its keepers' start to the end of its last process."""

    def __init__(
        self,
        name: str,
        machines: Machines,
        launch: Launch,
        timeout: float,
        log: Log,
        asked: Asked,
        began: float,
        restarts: int = 0,
    ) -> None:
        """`name`: the launcher's. `began`: Unix time in seconds from which the job's cost counts: its start, plus the
        length of its pauses. `restarts`: how often an elastic job may lose ranks."""
        self._launcher, self._machines, self._launch = name, machines, launch
        self._log, self._asked, self._began = log, asked, began
        self._unit, self._code = files.unit_of(launch.id), f"{launch.code}/launch"
        self._events: queue.SimpleQueue[NodeEvent] = queue.SimpleQueue()
        self._links: dict[str, Link] = {}
        self._nodes = {node.name: node for node in launch.nodes}
        self._ports: dict[str, int] = {}  # one that is free on each node
        placement = [node.name for node in launch.places for _ in range(node.slots)]
        program, began_now = _PROGRAMS.get(name, name), time.monotonic()
        self._watch = Diagnosis(placement, timeout, began_now, program, is_users=launch.program is not None)
        self.expiry, self._leaving = Expiry(), set[str]()
        self.worlds = self._worlds(restarts) if launch.elastic else None
        self._mpirun: subprocess.Popen[bytes] | None = None
        self._pmi: pmi.Server | None = None
        self._beat = 0.0
        self.stopping = ""
        """What was asked for (see Asked), once the ranks have been asked to stop."""
        self._stop_by = float("inf")
        self.first_step = 0.0
        """Unix time at which a rank had done its first step; 0: not yet."""
        self.remaining: dict[str, list[str]] = {}
        """The processes that could not be killed, by node."""
        self.unknown: list[str] = []
        """Nodes that have not reported whether all processes are gone."""

    def run(self) -> Outcome:
        """Run the attempt and end its processes on every node, also when an exception ends it."""
        try:
            with folders.temporary("trainyard-job-") as folder:
                verdict = self._keepers() or self._bring_written()
                if verdict is None:
                    self._start(folder)
                    verdict = self._follow()
        finally:
            self._end()
            if self._pmi is not None:
                self._pmi.close()
        return verdict

    def _keepers(self) -> Outcome | None:
        """Start a keeper on every node and wait for all; None if all answer, else a verdict that names one."""
        try:
            program_files.make_shared_work(self._launch)
        except program_files.PROBLEMS as error:
            return Outcome(1, str(error))
        # Of an earlier attempt: in a shared folder a rank's heartbeat may be that of a process on another node.
        with suppress(OSError):
            folders.remove(files.absolute(self._launch.run_dir) / "heartbeat")
        for node in self._launch.nodes:
            spec = keeper_spec(self._launch, node)
            self._links[node.name] = self._machines.link(spec, self._code, self._events)
        missing, heard = set(self._links), dict.fromkeys(self._links, time.monotonic())
        while missing:
            silent = min(missing, key=heard.__getitem__)
            if time.monotonic() - heard[silent] > ANSWER:
                why = self._links[silent].complaint or f"no word for {ANSWER:.0f} s"
                return Outcome(1, f"{silent} does not answer: {why}")
            if self._asked() == "now":
                return self._stopped()
            self._tick()
            for name, event in self._heard():
                heard[name] = time.monotonic()  # a keeper that prepares something says that it is there
                if event is None or event["event"] == "refused":
                    return Outcome(1, f"{name} cannot be used: {event['reason'] if event else self._why(name)}")
                if event["event"] == "ready":
                    missing.discard(name)
                    self._ports[name] = event["port"]
                self._take(name, event)
        self._watch.heard = dict.fromkeys(self._watch.heard, time.monotonic())
        return None

    def _bring_written(self) -> Outcome | None:
        """Before a user's program goes on, bring what it has written on the first node to the others; None: done."""
        copies = program_files.copies(self._launch)
        try:
            while not all(each.is_over() for each in copies):
                self._tick()
                for node, event in self._heard():
                    self._take(node, event)
                if self._asked() == "now":
                    return self._stopped()
                if (verdict := self._watch.verdict(time.monotonic())) is not None:
                    return verdict
            wrong = {each.node: why for each in copies if (why := each.problem(self._log.say))}
        finally:
            for each in copies:
                each.end()
        return Outcome(1, "; ".join(f"{node}: {why}" for node, why in wrong.items())) if wrong else None

    def _address(self, name: str) -> str:
        return self._machines.address(self._nodes[name])

    def _reach(self, name: str) -> Link | None:
        """A keeper on a node that was lost; None: it cannot be reached now."""
        spec = keeper_spec(self._launch, self._nodes[name])
        return self._machines.link_again(spec, self._code, self._events)

    def _start(self, folder: Path) -> None:
        launch = self._launch
        ranks = f"{launch.ranks} rank{'s' * (launch.ranks != 1)}"
        self._log.say(f"attempt {launch.attempt}: {ranks} on {', '.join(node.name for node in launch.nodes)}")
        if not self._watch.program:
            found = launcher.values(launch, folder, self._began, self._ports[launch.nodes[0].name])
            plan = plans.plan(self._launcher, launch, found)
            environment = plan.environment
            if launch.program is not None and launch.program.may_be_mpis:
                self._pmi = pmi.Server(self._machines.own_address, launch.ranks)
                environment = {**environment, pmi.VARIABLE: self._pmi.where}
            order = {"argv": plan.argv, "environment": environment}
            if self.worlds:
                self.worlds.start(order)
            else:
                self._say(f"start {json.dumps(order)}")
            return
        bound = [f"{key}={self._unit}-keeper.service" for key in ("BindsTo", "After")]
        properties = [*bound, "TimeoutStopSec=2"]
        self._mpirun = launcher.start(self._launcher, launch, folder, self._unit, properties, began=self._began)
        threading.Thread(target=self._hear_mpirun, args=(self._mpirun,), daemon=True).start()

    def _follow(self) -> Outcome:
        while True:
            self._tick()
            for node, event in self._heard():
                if not (self.worlds and self.worlds.heard(node, event)):
                    self._take(node, event)
            code, now = self._mpirun.poll() if self._mpirun else None, time.monotonic()
            if code is not None and self._watch.mpirun is None:
                self._watch.mpirun_ended(128 - code if code > 128 else code, now)
            asked = self._asked() or self._about_to_end(now)
            if asked == "now" or now > self._stop_by:
                return self._stopped()
            if asked and not self._watch.can_stop():
                return self._stopped()  # nothing is trained yet, and a rank that still loads does not handle SIGTERM
            if asked and not self.stopping:
                self.stopping = asked
                self._ask_to_stop(now)
            verdict = self._watch.verdict(now)
            if verdict is not None and (asked or not self._goes_on(verdict)):
                return verdict
            if self.worlds:
                self.worlds.look()

    def _worlds(self, restarts: int) -> Worlds:
        keep, first = partial(job_table.set_state, files.absolute(self._launch.run_dir)), self._launch.nodes[0]
        stays = first.private_ip == self._machines.own_address or not self._launch.shared_dir
        of_job = (restarts, self._log.say, self._reach, keep, self.expiry, first.name if stays else "")
        in_pods = self._launcher == KUBERNETES
        return Worlds(self._address, self._watch, self._links, *of_job, in_pods=in_pods)

    def _about_to_end(self, now: float) -> str:
        """`stop` if a node is about to end, and its ranks cannot leave the job before, as an elastic one's can."""
        if self.worlds and not self.stopping and self._watch.all_beat():
            self._leaving = self.worlds.leave(now)
        return self.expiry.asked(now, self._log.say, self._leaving)

    def _goes_on(self, verdict: Outcome) -> bool:
        """Whether an elastic job goes on without what is lost: not without the files of a first node beside us."""
        first, here = self._launch.nodes[0], self._machines.own_address
        has_files = first.private_ip != here and not self._launch.shared_dir
        is_lost = has_files and first.name in self._watch.gone
        return not is_lost and self.worlds is not None and self.worlds.go_on(verdict)

    def _ask_to_stop(self, now: float) -> None:
        program = self._launch.program
        wait = program.grace if program else self._watch.timeout + 30
        said = f"SIGTERM to its processes, and SIGKILL in {wait:g} s" if program else "a checkpoint first"
        self._stop_by, self._watch.is_stopping = now + wait, True
        self._log.say(f"stopping: {said}")
        self._say(f"term {min(wait, self.expiry.left(now)):.1f}")

    def _take(self, node: str, event: dict[str, Any] | None) -> None:
        now = time.monotonic()
        match event:
            case None:
                self._watch.cut_off(node, self._why(node), now)
                return
            case {"event": "log"}:
                self._log.add(event["time"], node, str(event["rank"]), event["text"])
            case {"event": "usage"}:
                usage.keep(files.absolute(self._launch.run_dir), node, event)
            case {"event": "ends", "in": seconds}:
                self.expiry.known(node, now + seconds)
            case {"event": "notice", "in": None}:
                self.expiry.withdraw(node)
            case {"event": "notice", "in": seconds, "why": why}:
                self.expiry.known(node, now + seconds, self._machines.why(node, has_gone=False) or why)
            case {"event": "step", "step": step} if step > 0:
                self.first_step = self.first_step or time.time()
        self._watch.update(node, event, now)

    def _stopped(self) -> Outcome:
        program = self._launch.program
        if program is not None and self.stopping and self._asked() != "now":
            left = self._watch.alive()
            return Outcome(1, f"stopped: killed, as {left} did not end within {program.grace:g} s of SIGTERM")
        self.stopping = self.stopping or "now"
        if program is not None:
            return Outcome(1, "stopped at once" if self._watch.can_stop() else "stopped before it began")
        return Outcome(1, "stopped without a checkpoint" if self._watch.all_beat() else "stopped before it trained")

    def _end(self) -> None:
        """End this attempt on every node that can be reached; sets `remaining` and `unknown`."""
        self._say("end")
        waiting, deadline = set(self._links) - set(self._watch.gone), time.monotonic() + END
        while waiting and time.monotonic() < deadline:
            for node in [node for node in waiting if time.monotonic() - self._watch.heard[node] > LEASE]:
                self._watch.gone.setdefault(node, "no word from it")
                waiting.discard(node)
            for node, event in self._heard():
                self._watch.heard[node] = time.monotonic()
                if event is None:
                    self._watch.gone.setdefault(node, self._why(node))
                    waiting.discard(node)
                elif event["event"] == "clean":
                    waiting.discard(node)
                    self.remaining |= {node: event["alive"]} if event["alive"] else {}
                elif event["event"] == "log":
                    self._take(node, event)
                    deadline = time.monotonic() + END  # its keeper ends this by itself
        self.unknown = sorted({*waiting, *self._watch.gone})
        if self.worlds:
            self.unknown += self.worlds.unknown()
            self.worlds.close()
        for link in self._links.values():
            link.cut()
        if self._mpirun is not None:
            self._mpirun.kill()
            self._mpirun.wait()

    def _tick(self) -> None:
        if time.monotonic() - self._beat > 1.0:
            self._beat = time.monotonic()
            self._say("beat")

    def _say(self, word: str) -> None:
        for link in self._links.values():
            link.say(word)

    def _heard(self) -> list[NodeEvent]:
        return arrived(self._events)

    def _why(self, node: str) -> str:
        return self._links[node].complaint or "its keeper ended"

    def _hear_mpirun(self, mpirun: subprocess.Popen[bytes]) -> None:
        """Log mpirun's own lines. The ranks' lines come from the keepers."""
        for line in launcher.lines(mpirun):
            self._watch.noise = line
            self._log.say(line)
