"""An elastic job on real ranks: one is lost, the others go on without a restart, and another one joins them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from gloo_ranks import Group, free_port, losses, start
from polling import until

pytestmark = pytest.mark.faults
pytest_plugins = ["training_fixtures"]
LONG = ["train.steps=150", "model.dropout=0", "train.eval_every=10", "checkpoint.every=10"]


class Supervisor:
    """Writes the worlds of a job, as its supervisor on the head does."""

    def __init__(self, job: Path, run: Path, size: int, keys: Sequence[str]) -> None:
        self.job, self.run, self.keys, self.file = job, run, keys, run / "world.json"
        self.generation, self.places = 0, list(range(size))
        self.environment = {
            "TRAINYARD_WORLD": str(self.file),
            "TRAINYARD_NODES": json.dumps([{"private_ip": "127.0.0.1"}]),
        }
        self.group = start(job, run, size, keys, environment=self.environment)

    def new_world(self, places: list[int], leaving: Sequence[int] = ()) -> None:
        self.generation += 1
        lost = [place for place in self.places if place not in (*places, *leaving)]
        port, self.places = free_port(), places
        world = {
            "generation": self.generation,
            "places": places,
            "addresses": ["127.0.0.1"],
            "port": port,
            "lost": lost,
            "leaving": list(leaving),
        }
        temporary = self.file.with_suffix(".tmp")
        temporary.write_text(json.dumps(world))
        temporary.replace(self.file)

    def newcomer(self, place: int) -> Group:
        own = {**self.environment, "TRAINYARD_JOINS": "1", "RANK": str(place), "TRAINYARD_PLACE": str(place)}
        self._beat_file(place).unlink()  # the rank before it may have waited for a world, too
        group = start(self.job, self.run, 1, self.keys, environment=own)
        until(lambda: self._beat_file(place).exists() and self.beat(place)["phase"] == "join")
        return group

    def beat(self, place: int) -> dict[str, object]:
        found: dict[str, object] = json.loads(self._beat_file(place).read_text())
        return found

    def _beat_file(self, place: int) -> Path:
        return self.run / "heartbeat" / f"rank-{place}.json"

    def step(self) -> int:
        lines = self.run / "metrics.jsonl"
        return len(lines.read_text().splitlines()) if lines.exists() else 0


@pytest.mark.parametrize(
    ("size", "lost", "how", "optimizer"),
    [
        (3, 0, signal.SIGKILL, "adamw"),
        (2, 1, signal.SIGKILL, "adamw"),
        (3, 2, signal.SIGSTOP, "adamw"),
        (3, 1, signal.SIGKILL, "muon"),
    ],
    ids=["the first of three", "one of two", "one that hangs", "muon"],
)
def test_a_rank_is_lost_and_another_joins(
    job: Path, tmp_path: Path, size: int, lost: int, how: signal.Signals, optimizer: str
) -> None:
    """Also one whose machine does not answer any more: no connection ends, until the others end theirs."""
    keys = [*LONG, f"train.optimizer={optimizer}"]
    undisturbed = start(job, tmp_path / "fixed", size, keys)
    supervisor = Supervisor(job, tmp_path / "run", size, keys)
    until(lambda: supervisor.step() >= 5)
    os.kill(supervisor.group.processes[lost].pid, how)
    newcomer = supervisor.newcomer(lost)
    left = [place for place in range(size) if place != lost]
    supervisor.new_world(left)
    at = supervisor.step()
    until(lambda: supervisor.step() > at + 3)
    assert supervisor.step() < 140
    supervisor.new_world(list(range(size)))
    assert newcomer.wait() == [0], newcomer.output() + supervisor.group.output()
    supervisor.group.processes[lost].kill()
    codes = supervisor.group.wait()
    assert codes[lost] == -signal.SIGKILL and not any(codes[place] for place in left), supervisor.group.output()
    undisturbed.done()
    far: dict[str, Any] = {"abs": 5e-3} if optimizer == "muon" else {"rel": 2e-5}  # Muon orthogonalises in bf16
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "fixed"), **far)
    assert (tmp_path / "run" / "checkpoints" / "step-000150").is_dir()


@pytest.mark.parametrize("leaving", [[2], [1, 2], [0]], ids=["one", "all but one", "the first"])
def test_ranks_leave_after_a_step_and_the_others_go_on_from_it(job: Path, tmp_path: Path, leaving: list[int]) -> None:
    """They leave and end by themselves, and no step is done twice; later one joins."""
    undisturbed = start(job, tmp_path / "fixed", 3, LONG)
    supervisor = Supervisor(job, tmp_path / "run", 3, LONG)
    until(lambda: supervisor.step() >= 5)
    staying = [place for place in range(3) if place not in leaving]
    supervisor.new_world(staying, leaving)
    until(lambda: all(supervisor.group.processes[place].exitcode == 0 for place in leaving))
    until(lambda: all(supervisor.beat(place)["world"] == 1 for place in staying))
    assert supervisor.step() < 140
    newcomer = supervisor.newcomer(leaving[0])
    supervisor.new_world(sorted([*staying, leaving[0]]))
    assert newcomer.wait() == [0], newcomer.output() + supervisor.group.output()
    assert supervisor.group.wait() == [0, 0, 0], supervisor.group.output()
    undisturbed.done()
    said = supervisor.group.output()
    assert said.count(": its node is about to be taken") == len(leaving) and "has lost the others" not in said, said
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 151))
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "fixed"), rel=2e-5)
