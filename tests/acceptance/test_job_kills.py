"""Fifty seeded kills of a job on real nodes, half of them while a checkpoint is being written: each time it can be gone
on with, nothing is left anywhere, and at the end the losses are those of a run that nobody disturbed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from jobs_on_nodes import DATA, GONE_SECONDS, RANK, Job, Start, folder, parts, process
from on_host import cut_power
from polling import until
from project import Project

pytestmark = [pytest.mark.faults, pytest.mark.soak, pytest.mark.timeout(2400)]

KILLS = int(os.environ.get("TRAINYARD_KILLS", "50"))
SEED = 4
STEPS = 480
# A checkpoint of it has 10 MB: it takes a while to write, and fifty starts take minutes.
JOB = [f"train.steps={STEPS}", "checkpoint.every=6"]
RANKS = {"node1": 0, "node2": 1, "node3": 2}


@dataclass
class Chain:
    """A job that is killed and gone on with, again and again, until its last step."""

    cluster: Project
    start: Start
    random: random.Random
    job: Job | None = None
    killed: list[str] = field(default_factory=list)

    def goes_on(self) -> Job:
        """Another `fab train`, of a new job or of the one that was killed."""
        again = ["--resume", self.job.id] if self.job else []
        self.job = self.start(*JOB, *again, step=0)
        return self.job

    def lines(self) -> list[dict[str, Any]]:
        assert self.job
        path = folder(self.cluster, self.job.id, "node1") / "metrics.jsonl"
        complete = (
            [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
            if path.exists()
            else []
        )
        return [json.loads(line) for line in complete]

    def step(self) -> int:
        lines = self.lines()
        return int(lines[-1]["step"]) if lines else 0

    def is_saving(self, node: str) -> bool:
        assert self.job
        with suppress(FileNotFoundError):
            there = folder(self.cluster, self.job.id, node) / "checkpoints"
            return any(path.suffix == ".tmp" for path in there.iterdir())
        return False

    def moment(self, during_a_save: bool, node: str) -> None:
        """Until it is time for the next kill."""
        begun = max(self.step(), 7)  # the first checkpoint, of step 6, is whole before the first kill
        wanted = begun + self.random.randrange(2, 14)
        until(lambda: self.step() >= min(wanted, STEPS - 8), 60, f"step {wanted}: {self.job and self.job.text()}")
        if during_a_save:
            deadline = time.monotonic() + 30
            while not self.is_saving(node):  # without a pause: a small checkpoint is written in milliseconds
                assert time.monotonic() < deadline, "no checkpoint is being written"
        else:
            time.sleep(self.random.random() / 4)


def test_fifty_kills_change_no_loss(cluster: Project, start: Start) -> None:
    undisturbed = start(*JOB, step=0)
    assert undisturbed.ends(240) == 0, undisturbed.text()
    wanted = [line["loss"] for line in Chain(cluster, start, random.Random(), undisturbed).lines()]
    assert len(wanted) == STEPS
    seeded = random.Random(SEED)
    plan = [(kill, number % 2 == 0) for number, kill in enumerate(seeded.choices(KINDS, weights=(5, 3, 1, 1), k=KILLS))]
    chain = Chain(cluster, start, seeded)
    chain.goes_on()
    for kill, during_a_save in plan:
        if chain.step() > STEPS - 30:
            chain = finished(chain, wanted)
            chain.goes_on()
        node = seeded.choice(["node2", "node3"] if kill is kill_node else list(RANKS))
        kill(chain, node, during_a_save)
        chain.killed.append(f"{kill.__name__} {node} at {chain.step()}{', saving' if during_a_save else ''}")
    finished(chain, wanted)


def finished(chain: Chain, wanted: list[float]) -> Chain:
    """To its end; a new one."""
    assert chain.job and chain.job.ends(240) == 0, chain.job and chain.job.text()
    lines = chain.lines()
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1)), "each step once, whatever was repeated"
    assert [line["loss"] for line in lines] == wanted, chain.killed
    print(f"{len(chain.killed)} kills: {'; '.join(chain.killed)}")
    return Chain(chain.cluster, chain.start, chain.random)


def ended(chain: Chain, reason: str, *nodes: str) -> None:
    """The job is over everywhere, says why, and goes on from a checkpoint that was verified."""
    job = chain.job
    assert job
    until(lambda: not parts(chain.cluster, job.id, *nodes), GONE_SECONDS, "nothing of the job is left")
    assert job.ends() == 1
    state = job.state()
    assert state["state"] == "FAILED" and re.match(reason, state["reason"]), (state, job.text())


def resumed(chain: Chain) -> None:
    before = chain.step()
    job = chain.goes_on()
    pattern = re.compile(rf"attempt {len(chain.killed) + 2}: .*going on from step (\d+), verified on disk", re.DOTALL)
    until(lambda: pattern.search(job.text()) or job.fab.poll() is not None, 60, "it goes on")
    found = pattern.search(job.text())
    # One is saved every 6 steps in the background, and the kill may have torn it: then the one before is used.
    assert found and before - 13 <= int(found[1]) <= before + 1, job.text()


def kill_rank(chain: Chain, node: str, during_a_save: bool) -> None:
    chain.moment(during_a_save, node)
    os.kill(process(chain.cluster, node, RANK), signal.SIGKILL)
    ended(chain, rf"rank {RANKS[node]} on {node} was killed by SIGKILL")
    resumed(chain)


def kill_mpirun(chain: Chain, node: str, during_a_save: bool) -> None:
    pid = process(chain.cluster, "node1", r"mpiexec\.hydra ")
    chain.moment(during_a_save, node)
    os.kill(pid, signal.SIGKILL)
    ended(chain, "mpirun was killed by SIGKILL")
    resumed(chain)


def kill_node(chain: Chain, node: str, during_a_save: bool) -> None:
    """All of its processes at once, as when the power goes; it comes back with an empty disk."""
    chain.moment(during_a_save, node)
    cut_power(chain.cluster.stack, node)
    ended(chain, rf"{node} \(rank {RANKS[node]}\) is cut off", *(other for other in RANKS if other != node))
    chain.cluster.fab("up", "--yes")
    chain.cluster.fab("wait")
    chain.cluster.fab("run", f'cd && python3 -c "{DATA}"', "--nodes", node)
    resumed(chain)


def kill_fab(chain: Chain, node: str, during_a_save: bool) -> None:
    """The operator's own: the job goes on without it."""
    chain.moment(during_a_save, node)
    job = chain.job
    assert job
    os.killpg(job.fab.pid, signal.SIGKILL)
    before = chain.step()
    until(lambda: chain.step() > before + 3, 30, "it goes on without its operator")
    assert job.state()["state"] == "RUNNING"
    assert chain.cluster.fab("stop", job.id, "--now").returncode == 0
    resumed(chain)


KINDS: list[Callable[[Chain, str, bool], None]] = [kill_rank, kill_mpirun, kill_node, kill_fab]
