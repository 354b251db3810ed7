"""metrics.jsonl: every step once after a kill, and a bounded size however long a run is."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

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
