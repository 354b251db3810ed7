"""A managed job that a killer disturbs, beside the same job undisturbed, in one session.

    python tests/bench/bench_managed.py --minutes 20 --every 120

--minutes: about how long the undisturbed job lasts; --every: how often a node is taken, in seconds; --elastic: the job
goes on from memory, and takes the new machines in.

Three local nodes; the killer, seeded, takes node2 or node3: SIGKILL of the whole machine, a Spot notice with the
machine's end after two minutes, a full disk, a link that is down, in turn. Half-way the manager itself is killed and
started again. The head is spared: without a bucket it alone has the job's files. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import local_nodes  # first: it finds the modules of the tests
from on_host import members
from project import Project

from infra.clouds.local import nodes

BOUND = 0.70
"""The least share of the undisturbed job's tokens a second."""
LOSS = 0.01
"""By how much the last validation losses may differ: sums in another order, thousands of steps long."""
SIZE = ["model.n_layer=4", "model.n_embd=128", "train.global_batch_tokens=6144", "train.eval_every=0"]
SIZE += ["checkpoint.every=20", "train.timeout=60"]
SEED = 13


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--every", type=float, default=120.0)
    parser.add_argument("--elastic", action="store_true")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with local_nodes.ready(3, "10.91.7.0/24") as (project, folder):
        project.fab("prepare", "smoke", timeout=300)
        return compared(project, folder, options.minutes * 60, options.every, ["--elastic"] * options.elastic)


def compared(project: Project, folder: Path, seconds: float, every: float, more: list[str]) -> int:
    """Both jobs; prints their figures. Returns 1 if a bound does not hold."""
    calibration = Run(project, folder / "calibration", 60)
    calibration.end()
    steps = max(100, round(seconds / calibration.seconds_per_step()))
    print(f"{steps} steps of {calibration.seconds_per_step():.2f} s", flush=True)
    plain = Run(project, folder / "plain", steps)
    plain.end()
    print(plain.row("undisturbed"), flush=True)
    disturbed = Run(project, folder / "managed", steps, "--managed", "--yes", "--tries", "200", *more)
    killer = Killer(project, disturbed, every)
    threading.Thread(target=killer.run, daemon=True).start()
    time.sleep(seconds / 2)
    disturbed.manager_dies()
    disturbed.end()
    killer.over.set()
    print(disturbed.row("with a killer"), flush=True)
    share, apart = disturbed.rate() / plain.rate(), abs(disturbed.loss() / plain.loss() - 1)
    print(f"{len(killer.taken)} nodes taken: {', '.join(killer.taken)}; {disturbed.attempts()} attempts")
    print(f"tokens/s: {share:.2f} of the undisturbed (bound {BOUND}); losses apart by {apart:.2%} (bound {LOSS:.0%})")
    every_step = disturbed.steps_done() == list(range(1, steps + 1))
    print(f"every step of 1 to {steps} counts once: {every_step}; {disturbed.done_again()} were done again")
    return 0 if share >= BOUND and apart <= LOSS and every_step else 1


class Run:
    """A job under way, or done."""

    def __init__(self, project: Project, log: Path, steps: int, *options: str) -> None:
        self.project, self.log, self.steps, self.options, self.began = project, log, steps, options, time.time()
        self.fab = self._start("smoke", *SIZE, f"train.steps={steps}", *options)

    def _start(self, *argv: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as output:
            return subprocess.Popen(
                ["fab", "train", *argv],
                cwd=self.project.root,
                env=self.project.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def id(self) -> str:
        found = re.search(r"^(\S+-\d+): 3 ranks", self.log.read_text(), re.M)
        return found[1] if found else ""

    @property
    def folder(self) -> Path:
        """Its run directory, on the head."""
        return nodes.machine(self.project.stack, "node1").root / "home/trainyard/runs" / self.id

    def manager_dies(self) -> None:
        """SIGKILL for the operator's process; another one goes on ten seconds later."""
        os.killpg(self.fab.pid, signal.SIGKILL)
        self.fab.wait()
        time.sleep(10)
        self.fab = self._start("--resume", self.id, *self.options)
        print(f"{time.time() - self.began:6.0f} s  the manager was killed, and another one goes on", flush=True)

    def end(self) -> None:
        if self.fab.wait() != 0:
            sys.exit(f"{self.id} ended with {self.fab.returncode}:\n{self.log.read_text()[-6000:]}")

    def state(self) -> dict[str, Any]:
        jobs = json.loads(self.project.fab("jobs", "--json").stdout)
        found: dict[str, Any] = next(one for one in jobs if one["id"] == self.id)
        return found

    def metrics(self) -> list[dict[str, Any]]:
        """Of each step the line that counts: one that goes on from a checkpoint takes out those of later steps."""
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def done_again(self) -> int:
        """Steps that were done more than once, by the job's log: what had been done beyond the checkpoint from which
        an attempt went on."""
        again = last = 0
        for going_on, step in re.findall(r"\bgoing on from step (\d+)|\bstep (\d+)/\d+ loss ", self._log_text()):
            begins_after = int(going_on) if going_on else int(step) - 1  # without a checkpoint: after 0
            again += max(0, last - begins_after)
            last = int(going_on or step)
        return again

    def _log_text(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def steps_done(self) -> list[int]:
        return sorted(one["step"] for one in self.metrics())

    def attempts(self) -> int:
        return int(self.state()["attempt"])

    def seconds_per_step(self) -> float:
        lines = self.metrics()[20:]
        return float((lines[-1]["time"] - lines[0]["time"]) / (len(lines) - 1))

    def rate(self) -> float:
        """Tokens a second from the job's start to its end, whatever happened in between."""
        state = self.state()
        return float(self.metrics()[-1]["tokens"] / (state["ended"] - state["started"]))

    def loss(self) -> float:
        return float(self.metrics()[-1]["val_loss"])

    def row(self, what: str) -> str:
        return f"{what:14} {self.rate():8.0f} tokens/s, validation loss {self.loss():.4f}"


class Killer:
    """Takes a node again and again, until the job is over."""

    def __init__(self, project: Project, job: Run, every: float) -> None:
        self._project, self._job, self._every = project, job, every
        self._random = random.Random(SEED)
        self.over, self.taken = threading.Event(), list[str]()

    def run(self) -> None:
        kinds = [self._kill, self._announce, self._fill, self._cut]
        while not self.over.wait(self._every) and self._job.id:
            kind, node = kinds[len(self.taken) % len(kinds)], self._random.choice(("node2", "node3"))
            self.taken.append(f"{kind.__name__.strip('_')} {node}")
            print(f"{time.time() - self._job.began:6.0f} s  {self.taken[-1]}", flush=True)
            kind(node)

    def _kill(self, node: str) -> None:
        for pid in members(self._project.stack, node, "payload"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _announce(self, node: str) -> None:
        """As bootstrap/notice.py records what EC2 announces; two minutes later the machine is gone."""
        at = time.time() + 120
        why = f"EC2 takes this Spot node at {time.strftime('%H:%M:%SZ', time.gmtime(at))}"
        record = json.dumps({"time": time.time(), "at": at, "why": why})
        there = "sudo mkdir -p /run/trainyard"  # which is missing on a node without limits
        self._on(node, f"{there} && echo '{record}' | sudo tee /run/trainyard/notice.json >/dev/null")
        before = members(self._project.stack, node, "payload")
        threading.Timer(120, self._end, (node, before)).start()

    def _end(self, node: str, processes: list[int]) -> None:
        """End the very machine that was announced, if it was not replaced before."""
        if set(processes) & set(members(self._project.stack, node, "payload")):
            self._kill(node)

    def _fill(self, node: str) -> None:
        """What the job's files are on is another, full disk now."""
        full = "sudo mount -t tmpfs -o size=64k,mode=0777 tmpfs runs; head -c 1M /dev/zero >runs/full; true"
        self._on(node, f"cd && {{ {full}; }} 2>/dev/null")

    def _cut(self, node: str) -> None:
        self._on(node, "sudo systemd-run --quiet --on-active=1 ip link set host0 down")

    def _on(self, node: str, command: str) -> None:
        """Run a command there; a node that is not there just now is said, as nothing was taken then."""
        done = self._project.fab("run", command, "--nodes", node, code=None)
        if done.returncode != 0:
            print(f"         {node}: {(done.stderr or done.stdout).strip()}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
