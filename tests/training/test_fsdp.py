"""Sharded training on real ranks: as good as with whole models, in step, in a share of the memory."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from gloo_ranks import losses, start

pytestmark = pytest.mark.faults
pytest_plugins = ["training_fixtures"]

FSDP = ["train.parallel=fsdp"]


def test_losses_are_those_of_whole_models_on_any_number_of_ranks(job: Path, tmp_path: Path) -> None:
    """In fp32, to 2e-5 of the loss, which is what whole models on other numbers of ranks differ by."""
    keys = ["model.dropout=0"]
    start(job, tmp_path / "ddp", 2, keys).done()
    whole = losses(tmp_path / "ddp")
    for size in (1, 2, 3):
        start(job, tmp_path / f"n{size}", size, [*keys, *FSDP]).done()
        assert losses(tmp_path / f"n{size}") == pytest.approx(whole, rel=2e-5), size


@pytest.mark.parametrize("name", ["llama", "roberta"])
def test_any_model_is_sharded(job: Path, tmp_path: Path, name: str) -> None:
    keys = [f"model.architecture={name}", "model.dropout=0", "train.steps=4", "train.lr=0.001"]
    start(job, tmp_path / "ddp", 2, keys).done()
    start(job, tmp_path / "fsdp", 3, [*keys, *FSDP, "train.recompute=true"]).done()
    assert losses(tmp_path / "fsdp") == pytest.approx(losses(tmp_path / "ddp"), rel=2e-5)
