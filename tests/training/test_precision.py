"""Precision: bf16 where the GPU has it, fp16 with loss scaling where not; the scaling goes on in a resumed run."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from training import optimizer as optimizers
from training import precision
from training.checkpoint.state import TrainingState
from training.keys import JobError
from training.models.roberta import Roberta, Shape
from training.parallel.ddp import OneRank
from training.parallel.ranks import Ranks
from training.sections import TrainSection
from training.stepper import Stepper

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
SHAPE = Shape(n_layer=1, n_head=2, n_embd=8, block_size=16, vocab_size=40)


@pytest.mark.parametrize(
    ("capability", "expected"), [((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")]
)
def test_the_gpu_decides_between_fp16_and_bf16(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: str
) -> None:
    seconds = {"fp32": 3.0, "fp16": 1.0, "bf16": 1.0}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(precision, "time_block", lambda name, *_: seconds[name])
    monkeypatch.setattr(precision, "matmul_peak", lambda *_: 1e14)
    model = Roberta(SHAPE)

    def choose(wanted: str) -> str:
        return precision.choose(wanted, model, CUDA, lambda values: values).mixed

    assert choose("auto") == expected
    assert choose("fp16") == "fp16" and choose("fp32") == "no"
    if expected == "fp16":
        with pytest.raises(JobError, match="bf16; allowed on a GPU older than sm_80: auto, fp32, fp16"):
            choose("bf16")
    else:
        assert choose("bf16") == "bf16"
    seconds[expected] = 2.9
    assert choose("auto") == "no", "not worth it"


class Scaled(OneRank):
    """One rank with fp16's loss scaling, on a CPU, for which accelerate refuses it."""

    def accelerator(self, mixed: str) -> Accelerator:
        accelerator = super().accelerator("no")
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        accelerator.native_amp = True
        accelerator.state._mixed_precision = mixed
        return accelerator


def stepper(state: TrainingState) -> Stepper:
    AcceleratorState._reset_state(reset_partial_state=True)
    return Stepper(TrainSection(), state, Scaled(Ranks(0, 1, 0, "node", 10, CPU, "gloo", ["node"])), "fp16")


def fresh() -> TrainingState:
    torch.manual_seed(1)
    model = Roberta(SHAPE)
    return TrainingState("roberta", model, optimizers.build(model, TrainSection()))


def step(one: Stepper, number: int, scale: float = 1.0) -> float:
    windows = torch.arange(30).view(2, 15)
    one.micro_step(one.model.batch(windows, [number, number + 1]), scale, last=True)
    return one.update()


def weights(one: Stepper) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in one.model.parameters()]


def scale_of(one: Stepper) -> float:
    state = one.scaler_state()
    assert state is not None
    return float(state["scale"])


@pytest.fixture(autouse=True)
def _no_other_accelerator() -> Any:
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_scaled_gradients_are_as_without_scaling_and_an_overflow_is_skipped() -> None:
    one = stepper(fresh())
    assert scale_of(one) == 1024.0
    norm = step(one, 1)
    plain = fresh().model
    plain(*plain.batch(torch.arange(30).view(2, 15), [1, 2])).backward()
    expected = torch.nn.utils.get_total_norm([p.grad for p in plain.parameters() if p.grad is not None])
    assert norm == pytest.approx(float(expected), rel=1e-4)
    before = weights(one)
    assert not math.isfinite(step(one, 2, scale=float("inf")))
    assert all(torch.equal(a, b) for a, b in zip(weights(one), before, strict=True)), "the update was skipped"
    assert scale_of(one) == 512.0
    step(one, 3)
    assert not all(torch.equal(a, b) for a, b in zip(weights(one), before, strict=True))


def test_a_resumed_run_has_the_scale_and_goes_on_to_the_bit() -> None:
    state = fresh()
    one = stepper(state)
    for number in range(2):
        step(one, number)
    saved = one.scaler_state()
    other = fresh()
    other.model.load_state_dict(state.model.state_dict())
    moments = {name: value.clone() for name, value in optimizers.tensors(state.model, state.optimizer).items()}
    optimizers.restore(other.model, other.optimizer, moments)
    other.scaler = saved
    again = stepper(other)
    for number in range(2, 6):
        assert step(one, number) == step(again, number)
    assert one.scaler_state() == again.scaler_state() and scale_of(one) == 4096.0
    assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(again), strict=True))
