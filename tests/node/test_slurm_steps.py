"""What a node's keeper does for a supervisor that died with its node: the job goes on, and this node is free again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_cluster import cluster

from node.job import files
from node.slurm import allocation, continuation, queue, step

NUMBER = f"{os.getpid()}77"
"""Slurm's number of a job that no node of this machine has."""


@pytest.fixture
def stepds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Programs that call themselves as slurmstepd does, and a sudo that runs what it is given as this user."""
    program = tmp_path / "bin/sudo"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nshift; exec "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    names = (f"[{NUMBER}.0]", f"[{NUMBER}.7]", f"[{NUMBER}.batch]", f"[{NUMBER}1.0]", f"[1{NUMBER}.0]")
    found = {name: subprocess.Popen([f"slurmstepd: {name}", "60"], executable="/bin/sleep") for name in names}
    yield found
    for each in found.values():
        each.kill()
        each.wait()


def test_all_steps_of_the_job_on_this_node_end_and_no_others(stepds: dict[str, subprocess.Popen[bytes]]) -> None:
    step.end_all(NUMBER)
    for name, each in stepds.items():
        if name.startswith(f"[{NUMBER}."):
            assert each.wait(5) == -signal.SIGKILL
        else:
            assert each.poll() is None, name


class Calls:
    """Slurm as take_over sees it; what it is asked for, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, reached: bool, secrets: bool = False) -> None:
        self.made: list[str] = []
        spec = SimpleNamespace(has_secrets=secrets)
        slurm = SimpleNamespace(
            nodes=cluster(2).nodes,
            number="7",
            dead=lambda names: set() if reached else set(names),
            tell_down=lambda names: self.made.append(f"down {sorted(names)}"),
        )
        monkeypatch.setattr(continuation, "of_job", lambda _run_dir: spec)
        monkeypatch.setattr(continuation, "Allocation", lambda _spec: slurm)
        monkeypatch.setattr(continuation, "go_on", lambda *args: self.made.append(f"go on without {sorted(args[3])}"))
        monkeypatch.setattr(step, "end_all", lambda number: self.made.append(f"end the steps of {number}"))


def test_a_keeper_goes_on_for_a_dead_node_and_then_frees_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch, reached=False)
    continuation.take_over(tmp_path, "node2")
    assert calls.made == ["go on without ['node1']", "down ['node1']", "end the steps of 7"]
    assert "node1 (rank 0) is cut off: no word for" in files.text(tmp_path / "log")


def test_slurm_itself_starts_a_job_with_secrets_again_and_this_node_is_freed_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch, reached=False, secrets=True)
    continuation.take_over(tmp_path, "node2")
    assert calls.made == ["down ['node1']", "end the steps of 7"]


def test_nothing_is_done_for_a_node_that_can_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, reached=True)
    continuation.take_over(tmp_path, "node2")
    assert calls.made == []


def test_many_nodes_that_do_not_answer_take_the_time_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(address: str, _port: int) -> bool:
        time.sleep(0.3)
        return address == "10.0.0.2"

    monkeypatch.setattr(allocation, "_answers", silent)
    monkeypatch.setattr(queue, "slurmd_port", lambda: 6818)
    ours = object.__new__(allocation.Allocation)  # without Slurm's environment
    ours.__dict__ = {"nodes": cluster(8).nodes}
    began = time.monotonic()
    names = [node.name for node in cluster(8).nodes]
    assert ours.dead(names) == {*names} - {"node2"} and time.monotonic() - began < 1.5
    assert ours.dead([]) == set()
