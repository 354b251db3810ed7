"""On every node of a job: watches the node's ranks for the head, and ends them when the head is gone.

Runs as the systemd service ID-keeper.service with the head's SSH as its stdin and stdout. The scope that the ranks
run in is bound to that service: when this program ends, of whatever, systemd kills them. It ends when the head says
so, when the connection closes, and when the head has not been heard for the length of the lease.

stdin    a line of JSON: a KeeperSpec; then words: beat, term, kill, end
stdout   lines of JSON: {"event": WORD, ...}; ready, beat, ends, notice, rank, step, stopped, log, usage, clean
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from node import memory
from node.job import cleanup, files, usage
from node.job.spec import KeeperSpec

POLL = 0.2
BEAT = 1.0
STOPPED_SECONDS = 2.0
"""A rank that is stopped (SIGSTOP, a debugger) for so long is reported."""

Event = dict[str, Any]


def main(_argv: list[str]) -> int:
    """Keep one node's part of a job until its end."""
    return Keeper(KeeperSpec(**json.loads(sys.stdin.readline()))).run()


class Keeper:
    """One node's part of an attempt."""

    def __init__(self, spec: KeeperSpec) -> None:
        self.spec, self.id = spec, spec.id
        self.run_dir = files.absolute(spec.run_dir)
        self.folder = self.run_dir / "nodes" / spec.node
        self._words: list[str] = []
        self._over = threading.Event()
        self._ranks: dict[int, Rank] = {}
        self._told = 0.0
        self._deadline: float | None = None
        self._meter = usage.Meter()
        self._began = self._measured = time.monotonic()
        self._notice: Event = {}
        self._starved = memory.Starved()

    def run(self) -> int:
        """Until the head ends it; exit code 1 where another job has the node."""
        others = cleanup.busy_with(self.id)
        if others:
            tell({"event": "refused", "reason": f"busy with {others[0]}"})
            return 1
        self._prepare()
        threading.Thread(target=self._listen, daemon=True).start()
        tell({"event": "ready"})
        while not self._over.wait(POLL):
            self._obey()
            self._look()
        self._end()
        return 0

    def _prepare(self) -> None:
        """Make the run directory, without an earlier attempt's records of this node's ranks."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        if not (self.run_dir / "job.toml").exists() or (self.run_dir / "job.toml").read_text() != self.spec.job:
            temporary = self.run_dir / f"job.toml.{self.spec.node}"
            temporary.write_text(self.spec.job)
            temporary.replace(self.run_dir / "job.toml")
        (self.run_dir / "heartbeat").mkdir(exist_ok=True)
        record = json.dumps({"id": self.id, "state": "RUNNING"})
        write = 'cat > "$1.new" && mv "$1.new" "$1"'
        subprocess.run(["sudo", "-n", "sh", "-c", write, "sh", str(files.JOB)], input=record, text=True, check=True)

    def _listen(self) -> None:
        """Take the head's words until it sends no more, or none for the length of the lease."""
        rest = b""
        while select.select([0], [], [], self.spec.lease)[0]:
            data = os.read(0, 4096)
            if not data:
                break
            *words, rest = (rest + data).split(b"\n")
            self._words += [word.decode() for word in words]
            if b"end" in words:
                self._over.set()
                return
        # Without the head nothing can be reported, and writing might block: end the ranks now, and this program.
        cleanup.kill(self.id)
        os._exit(3)

    def _obey(self) -> None:
        while self._words:
            word = self._words.pop(0)
            for rank in self._ranks.values():
                if word == "term":
                    rank.term()
            if word == "kill":
                cleanup.kill(self.id)

    def _look(self) -> None:
        for path in self.folder.glob("rank-*.json"):
            number = int(path.stem.rpartition("-")[2])
            if number not in self._ranks:
                self._ranks[number] = Rank(number, path, self.run_dir)
        self._starved.lately(time.monotonic())
        for rank in self._ranks.values():
            for event in rank.news():
                tell(self._with_cause(event))
        if time.monotonic() - self._told > BEAT:
            self._told = time.monotonic()
            tell({"event": "beat"})
            self._look_at_limits()
            self._measure()
            for rank in self._ranks.values():
                if step := rank.step():
                    tell(step)

    def _measure(self) -> None:
        """What the ranks use of this node, now and then."""
        now = time.monotonic()
        if now - self._measured < usage.interval(now - self._began):
            return
        self._measured = now
        used = self._meter.sample((pid for rank in self._ranks.values() if (pid := rank.pid)), now)
        if used is not None:
            tell({"event": "usage", **used})

    def _with_cause(self, event: Event) -> Event:
        """A rank's bad end with the node's when that has just run out."""
        bad = event["event"] == "rank" and (event["state"] == "lost" or event.get("code"))
        if not bad or not self._starved.lately(time.monotonic()):
            return event
        return {**event, "memory": memory.size(self.spec.memory_gb) or "unknown"}

    def _look_at_limits(self) -> None:
        """Report when this node's hours are over and when its cloud takes it, whenever that changes: in seconds from
        now, as the nodes' clocks differ."""
        deadline = files.read(files.LIMITS).get("deadline")
        if deadline is not None and deadline != self._deadline:
            self._deadline = deadline
            tell({"event": "ends", "in": deadline - time.time()})
        notice = files.read(files.NOTICE)
        if notice != self._notice:
            self._notice = notice
            left = notice["at"] - time.time() if notice else None
            tell({"event": "notice", "in": left, "why": notice.get("why", "")})

    def _end(self) -> None:
        """Kill the ranks, send their last lines, and check that none of their processes is there any more."""
        cleanup.kill(self.id)
        self._look()
        tell({"event": "clean", "left": cleanup.wait(self.id, seconds=5.0)})


class Rank:
    """One rank of this node, as its wrapper's record and its heartbeat describe it."""

    def __init__(self, number: int, path: Path, run_dir: Path) -> None:
        self.number, self.path = number, path
        self._lines = Lines(path.with_suffix(".log"))
        self._heartbeat = run_dir / "heartbeat" / f"rank-{number}.json"
        self._record: Event = {}
        self._stopped_since: float | None = None
        self._over = False

    def news(self) -> list[Event]:
        """What is new of it: its lines first, so that the last one is sent before its end."""
        record = files.read(self.path) or self._record
        events: list[Event] = [
            {"event": "log", "rank": self.number, "time": when, "text": text} for when, text in self._lines.new()
        ]
        if self._over or not record:
            return events
        if record != self._record:
            self._record = record
            self._over = record["state"] == "exited"
            events.append({**record, "event": "rank"})
        elif _state(record["wrapper"]) == "" and files.read(self.path) == record:
            self._over = True
            events.append({**record, "event": "rank", "state": "lost"})
        elif self._is_stopped():
            events.append({"event": "stopped", "rank": self.number})
        return events

    def step(self) -> Event | None:
        """Its step and the age of its heartbeat in seconds: both times are of this node's clock."""
        beat = files.read(self._heartbeat)
        if not beat or beat["pid"] != self._record.get("pid"):  # of an earlier attempt
            return None
        age = time.time() - beat["time"]
        return {
            "event": "step",
            "rank": self.number,
            "step": beat["step"],
            "phase": beat["phase"],
            "age": round(age, 2),
        }

    @property
    def pid(self) -> int | None:
        """Its process; None before it has started."""
        return self._record.get("pid")

    def term(self) -> None:
        """Ask it for a checkpoint and its end."""
        if not self._over and self._record:
            with suppress(ProcessLookupError):
                os.kill(self._record["pid"], signal.SIGTERM)

    def _is_stopped(self) -> bool:
        """True once, when it has been stopped for a while."""
        if _state(self._record["pid"]) not in ("T", "t"):
            self._stopped_since = None
            return False
        if self._stopped_since is None:
            self._stopped_since = time.monotonic()
        if time.monotonic() - self._stopped_since < STOPPED_SECONDS:
            return False
        self._stopped_since = float("inf")
        return True


class Lines:
    """A rank's log file as it grows: the new lines since the last look, also over its rotation (see rank.Log)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._rest = b""
        self._time = 0.0

    def new(self) -> list[tuple[float, str]]:
        """(time, text) of each whole line. One whose time was cut, by a full disk say, has that of the line before."""
        if self._file is None:
            if not self._path.exists():
                return []
            self._file = self._path.open("rb")
        found = self._whole(self._file.read())
        if not self._is_current(self._file):
            found += self._whole(self._file.read())  # written between the read above and the rotation
            self._file.close()
            self._file, self._rest = None, b""
        return found

    def _whole(self, data: bytes) -> list[tuple[float, str]]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [self._parsed(line.decode(errors="replace")) for line in lines if line]

    def _parsed(self, line: str) -> tuple[float, str]:
        when, space, text = line.partition(" ")
        if not (space and files.TIME.fullmatch(when)):
            return self._time or time.time(), line
        self._time = float(when)
        return self._time, text

    def _is_current(self, file: IO[bytes]) -> bool:
        try:
            return self._path.stat().st_ino == os.fstat(file.fileno()).st_ino
        except FileNotFoundError:
            return False


def _state(pid: int) -> str:
    """A process' state letter; empty: it is gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if state in "ZX" else state


def tell(event: Event) -> None:
    """Print an event as a line of JSON."""
    print(json.dumps(event), flush=True)
