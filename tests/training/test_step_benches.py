"""The benches of a training step, up to the measurement: which device and which size they take, and what they say."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

BENCH = Path(__file__).resolve().parents[1] / "bench"


@pytest.fixture(params=["roberta", "llama"])
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bench that notes what it would measure, as `measured`; the ratios that it finds are `ratios`, and then 2."""
    monkeypatch.syspath_prepend(str(BENCH))
    module: Any = importlib.import_module(f"bench_{request.param}_step")
    module.measured, module.ratios = [], []

    def compare(size: str, name: str, _args: object, device: torch.device) -> float:
        module.measured.append((size, name, device.type))
        return float(module.ratios.pop(0)) if module.ratios else 2.0

    monkeypatch.setattr(module, "compare", compare)
    return module


def run(bench: Any, monkeypatch: pytest.MonkeyPatch, *words: str, card: bool) -> int:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: card)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla V100-SXM2-32GB")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 0))
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    code: int = bench.main()
    return code


def test_a_gpu_that_is_asked_for_and_not_there_is_one_line(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(bench, monkeypatch, "--device", "cuda", card=False)
    out, error = capsys.readouterr()
    assert (ended.value.code, out, len(error.splitlines())) == (2, "", 1)
    assert error.startswith("--device cuda: no GPU here") and not bench.measured


def test_a_gpu_measures_the_large_size_in_both_precisions(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(bench, monkeypatch, card=True)
    large = {"bench_roberta_step": "large", "bench_llama_step": "1b"}[bench.__name__]
    assert bench.measured == [(large, "fp32", "cuda"), (large, "fp16", "cuda")]
    assert "Tesla V100" in (out := capsys.readouterr().out) and "no GPU" not in out
    run(bench, monkeypatch, "--device", "cpu", "--size", "small", "--precision", "fp32", card=True)
    assert bench.measured[2:] == [("small", "fp32", "cpu")]


def test_a_ratio_below_the_goal_fails(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--device", "cpu", "--size", "small", "--precision", "fp32", "bf16"]
    goal = {"bench_roberta_step": 1.2, "bench_llama_step": 1.15}[bench.__name__]
    bench.ratios = [goal, goal]
    assert run(bench, monkeypatch, *words, card=False) == 0
    assert capsys.readouterr().out.endswith(": none\n")
    bench.ratios = [2.0, goal - 0.01]
    assert run(bench, monkeypatch, *words, card=False) == 1
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith(f"below the goal ({goal}") and said.endswith(": small in bf16")


def test_llama_has_a_goal_at_its_small_size_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    llama: Any = importlib.import_module("bench_llama_step")
    monkeypatch.setattr(llama, "compare", lambda size, *_: 1.2 if size == "small" else 1.0)
    assert run(llama, monkeypatch, "--device", "cpu", "--size", *llama.SIZES, card=False) == 0
