"""On every node of a job: watches the node's ranks for the head, and ends them when the head is gone.

Runs as the systemd service ID-keeper.service; its stdin and stdout are the head's SSH connection. The ranks' scope is
bound to that service: when this program ends for any reason, systemd kills the ranks. It ends when the head says so,
when the connection closes, or when the head has sent nothing for the length of the lease. Under Slurm it is a step of
the job beside the ranks', its stdin and stdout are srun's, and the head is the job's first node. On Kubernetes, where
the head is the job's first pod, they are a socket to that, and this program starts its node's ranks itself.

stdin    a line of JSON: a KeeperSpec; then words: beat, term SECONDS (until the ranks are killed, or a node is taken),
         end, and, where it starts the ranks, start ORDER (see node/job/own_ranks.py); of an elastic job also kill RANK,
         and world WORLD (see training/parallel/world.py)
stdout   lines of JSON: {"event": WORD, ...}; ready, beat, ends, notice, rank, step, stopped, log, usage, clean
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import threading
import time
from contextlib import suppress
from typing import Any

from fabfile.launchers.program import Program, from_record
from node import folders, memory, scope
from node.job import cleanup, files, program_files, usage
from node.job.own_ranks import OwnRanks
from node.job.spec import KeeperSpec
from node.job.watched_rank import Rank
from node.slurm import continuation

POLL = 0.2
BEAT = 1.0
LAST_LINES = 60.0
"""Seconds in which a job that has ended may still send what its ranks had written."""
LEAVE = 35.0
"""Seconds from a pod's SIGTERM in which a checkpoint may be written; Kubernetes kills it after 45."""

Event = dict[str, Any]


def main(_argv: list[str]) -> int:
    """Keep one node's part of a job until its end."""
    if cleanup.under_slurm():  # which sends SIGTERM to everything: the supervisor says what is to be done
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    keeper = Keeper(KeeperSpec(**json.loads(_first_line())))
    if cleanup.in_pod():
        signal.signal(signal.SIGTERM, lambda *_: keeper.leave())
    return keeper.run()


def _first_line() -> bytes:
    """The first line of stdin, and not a byte of what follows, which `_listen` reads."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line


class Keeper:
    """One node's part of an attempt."""

    def __init__(self, spec: KeeperSpec) -> None:
        self.spec, self.id = spec, spec.id
        self.run_dir = files.absolute(spec.run_dir)
        self.folder = self.run_dir / "nodes" / spec.node
        self._over, self._term = threading.Event(), threading.Event()
        self._ranks: dict[int, Rank] = {}
        self._orders: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._started: OwnRanks | None = None
        self._beat = 0.0
        self._deadline: float | None = None
        self._meter = usage.Meter()
        self._began = self._measured = time.monotonic()
        self._notice: Event = {}
        self._leaves_at = 0.0
        self._starved = memory.Starved()

    def leave(self) -> None:
        """Kubernetes ends this pod: for a signal's handler. To the head that is as if a cloud took the node back."""
        self._leaves_at = self._leaves_at or time.time() + LEAVE

    def run(self) -> int:
        """Run until the head ends it; returns the exit code, 1 if another job has the node."""
        others = cleanup.busy_with(self.id)
        if others:
            send({"event": "refused", "reason": f"busy with {others[0]}"})
            return 1
        try:
            self._prepare()
        except program_files.PROBLEMS as error:
            send({"event": "refused", "reason": str(error)})
            self._kill()
            return 1
        threading.Thread(target=self._listen, daemon=True).start()
        send({"event": "ready", "port": scope.free_port("")})
        while not self._over.wait(0 if self._behind() else POLL):
            if self._term.is_set():
                self._term.clear()
                for rank in self._ranks.values():
                    rank.term()
            with suppress(queue.Empty):
                while True:
                    self._obey(*self._orders.get_nowait())
            self._look()
        self._end()
        return 0

    def _obey(self, verb: str, order: str) -> None:
        """Do what the head has ordered. By the main thread, which lives as long as this program: the ranks that it
        starts are to end with it."""
        if verb == "start":
            self._started = self._started or OwnRanks(self.spec.node, self.folder, send)
            for number in self._started.start(order):
                self._ranks.pop(number, None)
        elif verb == "world":
            files.write(self.folder / files.WORLD, json.loads(order))
        elif verb == "kill" and (rank := self._ranks.get(int(order))):
            rank.kill()

    def _prepare(self) -> None:
        """Make the run directory, remove an earlier attempt's records of this node's ranks, and record the job."""
        folders.remove(self.folder)
        self.folder.mkdir(parents=True)
        name, text = "job.toml", self.spec.job
        if self.spec.program is not None:
            name, text = files.PROGRAM, json.dumps(self._program(from_record(self.spec.program)))
        if files.text(self.run_dir / name) != text:
            temporary = self.run_dir / f"{name}.{self.spec.node}"
            temporary.write_text(text)
            temporary.replace(self.run_dir / name)
        (self.run_dir / "heartbeat").mkdir(exist_ok=True)
        if cleanup.in_pod():  # `fab status` looks at machines, not into pods
            return
        files.write_secrets(files.node_secrets_of(self.id), self.spec.secrets)
        record = json.dumps({"id": self.id, "state": "RUNNING", "keeper": os.getpid()})
        write = 'cat > "$1.new" && mv "$1.new" "$1"'
        subprocess.run(["sudo", "-n", "sh", "-c", write, "sh", str(files.JOB)], input=record, text=True, check=True)

    def _program(self, program: Program) -> dict[str, Any]:
        """Make the program's directory and its Python; returns its record, with the latter's folder. The head hears
        meanwhile that this node is at it."""
        done = threading.Event()

        def say_so() -> None:
            while not done.wait(BEAT):
                send({"event": "beat"})

        threading.Thread(target=say_so, daemon=True).start()
        try:
            program_files.make_work(program, self.run_dir, self.spec.shared_dir)
            return {**program.to_record(), "bin": program_files.python_folder(program, self.spec.shared_dir)}
        finally:
            done.set()

    def _listen(self) -> None:
        """Hear the head's words until `end`. If the connection closes or the lease runs out, kill the ranks."""
        rest = b""
        while select.select([0], [], [], files.LEASE)[0]:
            data = os.read(0, 4096)
            if not data:
                break
            *words, rest = (rest + data).split(b"\n")
            for word in words:
                verb, _, order = word.decode().partition(" ")
                if verb == "term":  # not behind the orders, which may take their time
                    self._term.set()
                    with suppress(OSError):  # a full disk: the ranks then end as if nobody had said how long they have
                        files.write(self.folder / files.STOP_BY, {"by": time.time() + float(order)})
                elif order:
                    self._orders.put((verb, order))
            if b"end" in words:
                self._over.set()
                return
        # Without the head nothing can be reported, and writing to stdout might block.
        self._kill()
        if cleanup.under_slurm():
            continuation.take_over(self.run_dir, self.spec.node)
        os._exit(3)

    def _look(self) -> None:
        for path in self.folder.glob("rank-*.json"):
            number = int(path.stem.rpartition("-")[2])
            if number not in self._ranks:
                self._ranks[number] = Rank(number, path, self.run_dir)
        self._starved.lately(time.monotonic())
        events = [event for rank in self._ranks.values() for event in rank.news()]
        events += self._started.failed() if self._started else []
        for event in events:
            send(self._with_cause(event))
        if time.monotonic() - self._beat > BEAT:
            self._beat = time.monotonic()
            send({"event": "beat"})
            self._look_at_limits()
            self._measure()
            for rank in self._ranks.values():
                if step := rank.step():
                    send(step)

    def _measure(self) -> None:
        """Report what the ranks use of this node, once per usage.interval."""
        now = time.monotonic()
        if now - self._measured < usage.interval(now - self._began):
            return
        self._measured = now
        pids = [pid for rank in self._ranks.values() if (pid := rank.pid)]
        if self.spec.program is not None:  # it may have started others, as torchrun does
            pids = [int(each.partition(" ")[0]) for each in cleanup.processes(self.id)]
        if used := self._meter.sample(pids, now):
            send({"event": "usage", **used})

    def _with_cause(self, event: Event) -> Event:
        """The event; if a rank ended badly and the node has just run out of memory, with the size of that memory."""
        bad = event["event"] == "rank" and (event["state"] == "lost" or event.get("code"))
        if not bad or not self._starved.lately(time.monotonic()):
            return event
        return {**event, "memory": memory.size(self.spec.memory_gb) or "unknown"}

    def _look_at_limits(self) -> None:
        """Report when this node's hours end and when its cloud takes it back, whenever either changes. Times are in
        seconds from now, as the nodes' clocks differ."""
        deadline, notice, now = files.read(files.LIMITS).get("deadline"), files.read(files.NOTICE), time.time()
        if self._leaves_at:
            notice = {"at": self._leaves_at, "why": "Kubernetes ends its pod"}
        if deadline is not None and deadline != self._deadline:
            self._deadline = deadline
            send({"event": "ends", "in": deadline - now})
        if notice != self._notice:
            self._notice = notice
            send({"event": "notice", "in": notice["at"] - now if notice else None, "why": notice.get("why", "")})

    def _end(self) -> None:
        """Kill the ranks, send their last lines, and report which of their processes could not be killed."""
        self._kill()
        alive, deadline = cleanup.wait(self.id, seconds=5.0), time.monotonic() + LAST_LINES
        self._look()
        while self._behind() and time.monotonic() < deadline:
            self._look()
        for number in self._behind():
            said = f"what it wrote after this is on {self.spec.node} only: {self.folder}/rank-{number}.log"
            send({"event": "log", "rank": number, "time": time.time(), "text": said})
        send({"event": "clean", "alive": alive})

    def _behind(self) -> list[int]:
        """The ranks of which the head does not have all lines yet."""
        return [number for number, rank in self._ranks.items() if rank.is_behind]

    def _kill(self) -> None:
        """Kill the ranks; under Slurm, where no service does it, also remove this node's record of the job."""
        cleanup.kill_job(self.id)
        files.node_secrets_of(self.id).unlink(missing_ok=True)
        if cleanup.under_slurm():
            subprocess.run(["sudo", "-n", "rm", "-f", str(files.JOB)], capture_output=True, check=False)


_sending = threading.Lock()


def send(event: Event) -> None:
    """Print an event as a line of JSON; by any thread."""
    with _sending:
        print(json.dumps(event), flush=True)
