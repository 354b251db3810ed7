"""metrics.jsonl: every step once after a kill, and a bounded size however long a run is; few events for TensorBoard."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from training import metrics
from training.metrics import Lines


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_lines_after_the_step_that_a_run_goes_on_from_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 9)) + '{"step": 9, "lo')
    lines = Lines(path, 5)
    lines.write({"step": 6, "again": True})
    lines.close()
    assert steps(path) == [1, 2, 3, 4, 5, 6]


def test_a_long_run_keeps_its_whole_curve_in_a_bounded_file(tmp_path: Path) -> None:
    path, limit = tmp_path / "metrics.jsonl", 20_000
    lines = Lines(path, 0, limit=limit)
    for step in range(1, 5001):
        values: dict[str, Any] = {"step": step, "loss": 1.0}
        lines.write(values | ({"val_loss": 2.0} if step % 1000 == 0 else {}))
        assert path.stat().st_size <= limit
    lines.close()
    kept = steps(path)
    assert kept == sorted(set(kept)) and kept[-1] == 5000 and kept[0] < 50
    assert {1000, 2000, 3000, 4000, 5000} <= set(kept), "validations stay"
    assert max(later - earlier for earlier, later in pairwise(kept)) <= 16, "no gap in the curve"


def test_of_a_million_steps_the_trackers_get_one_in_twenty_and_every_validation() -> None:
    lines = ({"step": step, **({"val_loss": 1.0} if step % 1001 == 0 else {})} for step in range(1, 1_000_001))
    tracked = [line["step"] for line in lines if metrics.is_tracked(line)]
    assert len(tracked) < 50_000 and tracked[:9999] == list(range(1, 10_000))
    assert set(range(1001, 1_000_001, 1001)) <= set(tracked), "validations stay"
    assert all(later - earlier <= max(1, later / 5000) for earlier, later in pairwise(tracked)), "no gap in a curve"


def events(run: Path) -> list[int]:
    """The steps at which TensorBoard finds a loss, in the order of writing."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    return [
        event.step
        for file in sorted((run / "tensorboard").rglob("events.out.*"), key=lambda file: file.stat().st_mtime_ns)
        for event in loader.EventFileLoader(str(file)).Load()
        if any(value.tag == "loss" for value in event.summary.value)
    ]


def test_the_events_of_a_long_run_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of 40 times as many steps as are tracked one by one, stopped in the middle."""
    state = pytest.importorskip("accelerate.state")
    from accelerate import Accelerator  # with torch, which takes a second

    from training.run_writer import RunWriter

    monkeypatch.setattr(metrics, "_TRACKED_STEPS", 50)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    run = tmp_path / "run"
    run.mkdir()
    job: Any = SimpleNamespace(
        **{"mirror": lambda _name: "", "to_toml": lambda: "", "own_windows": (0, 4)},
        **{"model": SimpleNamespace(block_size=8), "train": SimpleNamespace(steps=2000)},
        checkpoint=SimpleNamespace(keep=2),
    )
    data: Any = SimpleNamespace()
    values = {"loss": 1.0, "lr": 1e-3, "tokens_per_s": 9.0}
    try:
        for first, last in ((1, 1300), (1301, 2000)):
            begun: Any = SimpleNamespace(state=SimpleNamespace(step=first - 1), parallel=SimpleNamespace())
            begun.parallel.calls_together, begun.stepper = False, SimpleNamespace(accelerator=Accelerator(cpu=True))
            ranks: Any = SimpleNamespace(is_first=True, leads_node=True)
            writer = RunWriter(job, run, ranks, begun, data, None, shared=False, resume=first > 1)
            writer.open(from_memory=False)
            for step in range(first, last + 1):
                begun.state.step = step
                writer.save({"step": step, **values}, metrics.Clock(), due=False, best=False)
            writer.close_lines()
    finally:
        state.AcceleratorState._reset_state(reset_partial_state=True)
    assert steps(run / "metrics.jsonl") == list(range(1, 2001))
    found = events(run)
    assert found == sorted(set(found)) and found[:49] == list(range(1, 50)) and found[-1] > 1900
    assert len(found) < 50 + 25 * 6, "each doubling adds half of the first 50"
