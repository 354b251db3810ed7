"""Training on real ranks: in step with each other, stopped, lost, gone on with."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from gloo_ranks import Group, lines, losses, start
from polling import until

from training.checkpoint import files as checkpoint

pytestmark = pytest.mark.faults
pytest_plugins = ["training_fixtures"]


def parameters(run: Path, step: int) -> str:
    state = json.loads((run / "checkpoints" / f"step-{step:06d}" / "state.json").read_text())
    return str(state["parameters"])


def test_losses_do_not_depend_on_the_number_of_ranks(job: Path, tmp_path: Path) -> None:
    groups = [start(job, tmp_path / f"n{size}", size, ["model.dropout=0"]) for size in (1, 2, 3)]
    for group in groups:
        group.done()
    one, two, three = (losses(tmp_path / f"n{size}") for size in (1, 2, 3))
    assert two == pytest.approx(one, rel=2e-5)
    assert three == pytest.approx(one, rel=2e-5)
    validations = [[line["val_loss"] for line in lines(tmp_path / f"n{n}") if "val_loss" in line] for n in (1, 2, 3)]
    assert len(validations[0]) == 2
    assert validations[1] == pytest.approx(validations[0], rel=2e-5)
    assert validations[2] == pytest.approx(validations[0], rel=2e-5)
    assert one[8] < one[1] - 0.3


def test_resumed_losses_are_bit_identical_wherever_it_is_killed(job: Path, tmp_path: Path) -> None:
    start(job, tmp_path / "whole", 3).done()
    run = tmp_path / "killed"
    for at in (2, 5, 7):
        group = start(job, run, 3)
        until(partial(has_lines, run, at))
        group.kill()
    start(job, run, 3).done()
    assert losses(run) == losses(tmp_path / "whole")
    assert parameters(run, 8) == parameters(tmp_path / "whole", 8)


def lines_so_far(run: Path) -> list[str]:
    return (run / "metrics.jsonl").read_text().splitlines()


def has_lines(run: Path, count: int) -> bool:
    return (run / "metrics.jsonl").exists() and len(lines_so_far(run)) >= count


def test_sigterm_to_one_rank_saves_and_stops_all(job: Path, tmp_path: Path) -> None:
    group = start(job, tmp_path / "run", 2, ["train.steps=100000", "checkpoint.every=100000"])
    until(lambda: "step 3/" in group.output(0))
    os.kill(group.processes[1].pid, signal.SIGTERM)
    assert group.wait(30) == [0, 0]
    last = lines(tmp_path / "run")[-1]["step"]
    assert f"stopped: step {last} is in the checkpoint" in group.output(0)
    assert (tmp_path / "run" / "checkpoints" / "latest").read_text() == f"{last}\n"


def test_a_run_that_is_stopped_leaves_its_last_step_in_the_mirror(job: Path, tmp_path: Path) -> None:
    """Of a node that its cloud takes nothing else is left: the step that the run says, whole, once the ranks ended."""
    shelf = f"checkpoint.mirror=file://{tmp_path}/shelf"
    group = start(job, tmp_path / "run", 2, ["train.steps=100000", "checkpoint.every=100000", shelf])
    until(lambda: "step 3/" in group.output(0))
    os.kill(group.processes[1].pid, signal.SIGTERM)
    assert group.wait(60) == [0, 0]
    last = lines(tmp_path / "run")[-1]["step"]
    assert f"stopped: step {last} is in the checkpoint" in group.output(0)
    there = tmp_path / "shelf/run/checkpoints"
    assert [path.name for path in there.iterdir() if path.is_dir()] == [f"step-{last:06d}"]
    checkpoint.verify(there / f"step-{last:06d}")


def drift(rank: int) -> None:
    """Plants what must not be: from the second step on, rank 1 has a parameter of its own."""
    from training.stepper import Stepper

    original = Stepper.update

    def update(self: Stepper) -> float:
        norm = original(self)
        if rank == 1:
            with torch.no_grad():
                self.module.module.blocks[1].norm_2.weight[3] += 1e-6
        return norm

    Stepper.update = update  # type: ignore[method-assign]


def test_ranks_that_are_not_in_step_are_named_and_nothing_is_saved(job: Path, tmp_path: Path) -> None:
    group = start(job, tmp_path / "run", 3, before=drift)
    assert group.wait() == [1, 1, 1]
    expected = "error: parameters of rank 1 (node1) differ from those of the other 2 ranks after step 2"
    assert f"{expected}, first in blocks.1.norm_2.weight" in group.output(0)
    assert expected in group.output(2)
    assert not list((tmp_path / "run" / "checkpoints").glob("step*"))


@pytest.mark.parametrize(("number", "lost"), [(signal.SIGKILL, 1), (signal.SIGKILL, 0), (signal.SIGSTOP, 2)])
def test_a_lost_rank_is_named_by_all_others_in_time(job: Path, tmp_path: Path, number: int, lost: int) -> None:
    group = start(job, tmp_path / "run", 3, ["train.steps=100000", "checkpoint.every=100000", "train.timeout=3"])
    until(lambda: "step 3/" in group.output(0))
    begin = time.monotonic()
    os.kill(group.processes[lost].pid, number)
    others = [rank for rank in range(3) if rank != lost]
    for rank in others:
        group.processes[rank].join(15)
    took = time.monotonic() - begin
    states = [group.processes[rank].exitcode for rank in others]
    group.kill()
    assert states == [1, 1], group.output()
    assert took < 3 + 5, group.output()
    for rank in others:
        assert f"error: rank {lost} (node{lost}) does not answer" in group.output(rank), group.output()


def test_a_fault_of_one_rank_is_known_to_the_others(job: Path, tmp_path: Path) -> None:
    group = start(job, tmp_path / "run", 2, before=out_of_memory)
    assert group.wait() == [1, 3], "the rank that failed by itself, and one that another has ended"
    assert "error: rank 1 (node1) failed: out of memory" in group.output(0)


def out_of_memory(rank: int) -> None:
    from training import loop

    if rank == 1:
        loop.Loop._train = _no_memory  # type: ignore[method-assign,assignment]


def _no_memory(*_: object) -> None:
    raise RuntimeError("out of memory")


def test_a_node_without_the_checkpoint_gets_it_from_another(job: Path, tmp_path: Path) -> None:
    runs = [tmp_path / "a", tmp_path / "b"]
    start(job, runs, 2, ["train.steps=8"]).done()
    expected = losses(runs[0])
    again = [tmp_path / "c", tmp_path / "d"]
    group = start(job, again, 2)
    until(lambda: has_lines(again[0], 5))
    group.kill()
    group = start(job, [again[0], tmp_path / "new"], 2)
    group.done()
    assert losses(again[0]) == expected
    assert "going on from step" in group.output(0)
    assert parameters(tmp_path / "new", 8) == parameters(runs[0], 8)


def test_accumulation_does_not_change_the_loss(job: Path, tmp_path: Path) -> None:
    for micro in (1, 7):
        start(job, tmp_path / f"m{micro}", 1, [f"train.micro_batch={micro}", "model.dropout=0"]).done()
    assert losses(tmp_path / "m1") == pytest.approx(losses(tmp_path / "m7"), rel=2e-5)


@pytest.mark.parametrize(
    ("size", "overrides", "expected"),
    [
        (2, ["train.global_batch_tokens=16"], "train.global_batch_tokens = 16: 1 windows of 16 tokens for 2 ranks"),
        (1, ["data.path=/nowhere"], "data.path = /nowhere"),
        (1, ["model.vocab_size=10"], "model.vocab_size = 10"),
        (1, ["model.block_size=2000", "train.global_batch_tokens=4000"], "the val split of"),
    ],
)
def test_a_job_that_cannot_be_is_one_line_and_2(
    job: Path, tmp_path: Path, size: int, overrides: list[str], expected: str
) -> None:
    group: Group = start(job, tmp_path / "run", size, overrides)
    assert group.wait() == [2] * size
    assert expected in group.output()
    assert "Traceback" not in group.output()
