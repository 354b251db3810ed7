"""Training on an NVIDIA GPU, where there is one: NCCL, fp16 with scaling, bf16, what `auto` chooses, resume, shards.

Losses are compared with the same job's in fp32 on the processor. It has no dropout, whose random numbers are others on
a GPU. What runs here as well shows that these tests themselves would.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import on_device
import pytest
from bootstrap_runner import CUDA, cuda_module
from gloo_ranks import TINY, lines, losses

from training.checkpoint.files import folder_of

pytest_plugins = ["training_fixtures"]

pytestmark = pytest.mark.acceptance

on_a_card = pytest.mark.skipif(
    not (Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi")), reason="no NVIDIA GPU here"
)
KEYS = ["model.dropout=0", "checkpoint.keep=4"]
IN_FP32 = 1e-4
"""By how much of itself a loss in fp32 may differ on a GPU, which adds up in another order: on a processor two ranks
differ from one by 3e-8."""
IN_HALF = 5e-3
"""The same of bf16 and fp16: on a processor 4e-4 and 4e-5."""


@pytest.fixture(scope="module")
def card() -> dict[str, Any]:
    """What torch says of the first GPU."""
    seen = on_device.seen_by_torch()
    if not seen["gpus"]:
        pytest.skip(f"no NVIDIA GPU here that torch can use: {seen['why']}")
    return seen


@pytest.fixture(scope="module")
def reference(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses in fp32 on the processor."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "job.toml").write_text(TINY.format(data=data))
    on_device.train("cpu", folder / "job.toml", folder / "run", KEYS)
    return losses(folder / "run")


def as_in_fp32(run: Path, reference: dict[int, float], tolerance: float) -> None:
    found = losses(run)
    assert found[8] < found[1] - 0.5, "it learns"
    assert found == pytest.approx(reference, rel=tolerance)


def state_of(run: Path, step: int) -> dict[str, Any]:
    return dict(json.loads((folder_of(run / "checkpoints", step) / "state.json").read_text()))


# --- the software, for this card ---


@on_a_card
def test_torch_is_built_for_this_card(card: dict[str, Any], tmp_path: Path) -> None:
    """By the program that the bootstrap asks, which also records the version of NCCL."""
    major, minor = card["capability"]
    versions = tmp_path / "versions.json"
    versions.write_text("{}")
    program = [sys.executable, str(CUDA / "torch_build.py"), f"sm_{major}{minor}", str(versions)]
    asked = subprocess.run(program, capture_output=True, text=True)
    assert asked.returncode == 0, f"{card['name']}: {asked.stdout}"
    found = json.loads(versions.read_text())
    assert found["nccl"][0].isdigit() and found["cuda"][0].isdigit() and found["torch architectures"]


@on_a_card
def test_the_nodes_own_check_finds_the_cards(card: dict[str, Any], tmp_path: Path) -> None:
    """bootstrap/cuda/gpus.py, under a root that has this machine's bus, and this Python for a node's."""
    query = ["nvidia-smi", f"--query-gpu={','.join(cuda_module('gpus').FIELDS)}", "--format=csv,noheader,nounits"]
    asked = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    kinds = [f"sm_{gpu['compute_cap'].replace('.', '')}" for gpu in cuda_module("gpus").gpus(asked)]
    if len(set(kinds)) > 1 or len(kinds) != card["gpus"]:
        pytest.skip(f"GPUs of one kind are a node's, all of them torch's: here are {' '.join(kinds)}")
    (tmp_path / "sys").symlink_to("/sys")
    (tmp_path / "opt/trainyard").mkdir(parents=True)
    (tmp_path / "opt/trainyard/venv").symlink_to(sys.prefix)
    wanted = {"TRAINYARD_PREFIX": str(tmp_path), "TRAINYARD_GPUS": str(len(kinds))}
    environment = on_device.environment("cuda", TRAINYARD_GPU_ARCHITECTURE=kinds[0], **wanted)
    program = [sys.executable, str(CUDA / "gpus.py"), str(tmp_path / "gpus.json")]
    checked = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"({kinds[0]})" in json.loads((tmp_path / "gpus.json").read_text())["gpus"]


@on_a_card
def test_ranks_exchange_all_that_they_do_over_nccl(card: dict[str, Any]) -> None:
    found = on_device.collectives("cuda")
    assert found["backend"] == "nccl" and found["on"] == ["cuda"] and found["calls"] >= 12, found
    assert all(found["equal"].values()) and found["broadcast"] == [1, 1, 1] and found["left"], found


# --- precision ---


def test_in_bf16_the_losses_are_as_in_fp32_on_the_processor(
    job: Path, tmp_path: Path, reference: dict[int, float]
) -> None:
    """What the test below asks of a card."""
    on_device.train("cpu", job, tmp_path / "run", [*KEYS, "train.precision=bf16"])
    as_in_fp32(tmp_path / "run", reference, IN_HALF)
    assert losses(tmp_path / "run") != reference
    assert state_of(tmp_path / "run", 8)["scaler"] is None


@on_a_card
def test_in_bf16_they_are_on_a_card_from_sm_80(
    card: dict[str, Any], job: Path, tmp_path: Path, reference: dict[int, float]
) -> None:
    keys = [*KEYS, "train.precision=bf16"]
    if tuple(card["capability"]) < (8, 0):
        refused = on_device.train("cuda", job, tmp_path / "run", keys, code=2)
        assert "bf16; allowed on a GPU older than sm_80: auto, fp32, fp16" in refused
        return
    on_device.train("cuda", job, tmp_path / "run", keys)
    as_in_fp32(tmp_path / "run", reference, IN_HALF)
    assert state_of(tmp_path / "run", 8)["scaler"] is None


@on_a_card
def test_in_fp32_a_card_computes_what_the_processor_does(
    card: dict[str, Any], job: Path, tmp_path: Path, reference: dict[int, float]
) -> None:
    on_device.train("cuda", job, tmp_path / "run", KEYS)
    as_in_fp32(tmp_path / "run", reference, IN_FP32)


@on_a_card
def test_fp16_is_scaled_and_a_resumed_run_is_the_same_to_the_bit(
    card: dict[str, Any], job: Path, tmp_path: Path, reference: dict[int, float]
) -> None:
    """Of the scaler, too: it has counted all eight steps, and not those after the resume alone."""
    whole, again, keys = tmp_path / "whole", tmp_path / "again", [*KEYS, "train.precision=fp16"]
    on_device.train("cuda", job, whole, keys)
    as_in_fp32(whole, reference, IN_HALF)
    shutil.copytree(whole, again)
    for step in (6, 8):
        shutil.rmtree(folder_of(again / "checkpoints", step))
    assert "going on from step 4" in on_device.train("cuda", job, again, keys)
    assert losses(again) == losses(whole)
    assert [line["grad_norm"] for line in lines(again)] == [line["grad_norm"] for line in lines(whole)]
    ends = [state_of(run, 8) for run in (whole, again)]
    assert ends[0]["scaler"] == ends[1]["scaler"] and ends[0]["parameters"] == ends[1]["parameters"]
    assert ends[0]["scaler"]["scale"] > 1 and ends[0]["scaler"]["_growth_tracker"] == 8, "no step has overflowed"


@on_a_card
def test_auto_measures_what_the_card_has_and_takes_the_faster(card: dict[str, Any], job: Path, tmp_path: Path) -> None:
    """One wide block: there, the cards of which this project knows are several times as fast in 16 bits."""
    wide = ["model.n_layer=1", "model.n_head=16", "model.n_embd=2048", "model.block_size=1024"]
    one_step = ["train.global_batch_tokens=1024", "train.steps=1", "train.warmup=0", "train.eval_windows=1"]
    output = on_device.train("cuda", job, tmp_path / "run", [*KEYS, *wide, *one_step, "train.precision=auto"])
    chosen, times = on_device.measured(output)
    half = "bf16" if tuple(card["capability"]) >= (8, 0) else "fp16"
    assert list(times) == ["fp32", half] and chosen == half, output
    assert state_of(tmp_path / "run", 1)["precision"] == half


# --- several ranks, and shards ---


@on_a_card
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_model_in_shards_trains_over_nccl(
    card: dict[str, Any], job: Path, tmp_path: Path, reference: dict[int, float], precision: str
) -> None:
    keys = [*KEYS, "train.parallel=fsdp", f"train.precision={precision}"]
    output = on_device.train("cuda", job, tmp_path / "run", keys)
    assert "over nccl" in output
    as_in_fp32(tmp_path / "run", reference, IN_FP32 if precision == "fp32" else IN_HALF)
    assert (state_of(tmp_path / "run", 8)["scaler"] is None) == (precision == "fp32")


@on_a_card
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_cards_train_as_one(
    card: dict[str, Any], job: Path, tmp_path: Path, reference: dict[int, float], parallel: str
) -> None:
    if card["gpus"] < 2:
        pytest.skip("one NVIDIA GPU here, and this needs two")
    output = on_device.train("cuda", job, tmp_path / "run", [*KEYS, f"train.parallel={parallel}"], ranks=2)
    assert "2 rank(s)" in output and "over nccl" in output
    as_in_fp32(tmp_path / "run", reference, IN_FP32)
