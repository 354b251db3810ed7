"""Muon: the same model on any number of ranks, resumed to the bit, and proved equal on all ranks."""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

from gloo_ranks import TINY, lines, losses, start

from training import job as jobs
from training.checkpoint import files as checkpoint

pytestmark = pytest.mark.faults
pytest_plugins = ["training_fixtures"]

MUON = ["train.optimizer=muon", "checkpoint.keep=4"]


def test_any_number_of_ranks_trains_the_same_and_resumes_bit_for_bit(job: Path, tmp_path: Path) -> None:
    """Three ranks share the work on the matrices; one resumed from their checkpoint has all of the momentum."""
    one, three, again = tmp_path / "one", tmp_path / "three", tmp_path / "again"
    start(job, one, 1, [*MUON, "model.dropout=0"]).done()
    start(job, three, 3, [*MUON, "model.dropout=0"]).done()
    # The orthogonalisation is in bf16, so the last digits of a gradient reach the third of an update.
    assert losses(three) == pytest.approx(losses(one), rel=2e-3)
    assert losses(three)[8] < losses(three)[1] - 0.3
    for ranks in (3, 1):
        shutil.copytree(three, again)
        for step in (6, 8):
            shutil.rmtree(checkpoint.folder_of(again / "checkpoints", step))
        start(job, again, ranks, [*MUON, "model.dropout=0"]).done()
        if ranks == 3:
            assert losses(again) == losses(three)
            states = [checkpoint.read_state(checkpoint.folder_of(run / "checkpoints", 8)) for run in (three, again)]
            assert states[0]["parameters"] == states[1]["parameters"] and states[0]["optimizer"] == "muon"
        assert losses(again) == pytest.approx(losses(three), rel=2e-3)
        shutil.rmtree(again)


def unequal_gradient(rank: int) -> None:
    """Plants what must not be: from the second step on, rank 1 has another gradient for a matrix."""
    from training.stepper import Stepper

    original = Stepper.update

    def update(self: Stepper) -> float:
        if rank == 1:
            gradient = self.module.module.blocks[1].mlp.up.weight.grad
            gradient[3, 3] += 1e-3
        return original(self)

    Stepper.update = update  # type: ignore[method-assign]


def test_ranks_with_other_gradients_are_named_though_the_matrices_are_sent_to_all(job: Path, tmp_path: Path) -> None:
    group = start(job, tmp_path / "run", 3, [*MUON, "train.clip=0"], before=unequal_gradient)
    assert group.wait() == [1, 1, 1]
    expected = "parameters of rank 1 (node1) differ from those of the other 2 ranks after step 2"
    assert f"{expected}, first in momentum_buffer.blocks.1.mlp.up.weight" in group.output(0)


def test_a_run_keeps_its_optimizer(job: Path, tmp_path: Path) -> None:
    start(job, tmp_path / "run", 1, ["train.steps=2", "train.warmup=0"]).done()
    group = start(job, tmp_path / "run", 1, MUON)
    assert group.wait() == [2]
    assert "error: train.optimizer = muon; allowed: adamw, as in this run's checkpoints" in group.output()
    assert len(lines(tmp_path / "run")) == 2


def test_muon_without_a_torch_that_has_it_is_one_line(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on nodes of the profile ipex."""
    (tmp_path / "tiny.toml").write_text(TINY.format(data=data))
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.8.0+cpu")
    assert jobs.main(["check", str(tmp_path / "tiny.toml")]) == 0
    assert jobs.main(["check", str(tmp_path / "tiny.toml"), "train.optimizer=muon"]) == 2
    expected = "error: train.optimizer = muon: needs torch 2.9 or newer, here is 2.8.0+cpu; allowed here: adamw\n"
    assert capsys.readouterr().err == expected
