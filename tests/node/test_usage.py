"""What a job uses of its nodes, measured on a real process and read for the report; texts that were sampled."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from node import run_data
from node.job import usage
from training import sample


def test_a_busy_process_is_measured() -> None:
    program = "import time; data = bytearray(200 << 20); end = time.time() + 60\nwhile time.time() < end: pass"
    child = subprocess.Popen([sys.executable, "-c", program])
    try:
        meter = usage.Meter()
        time.sleep(0.5)
        assert meter.sample([child.pid], time.monotonic()) is None, "the first has nothing to compare with"
        time.sleep(2)
        used = meter.sample([child.pid, 2**30], time.monotonic())
        assert used is not None and 0.02 < used["cpu"] < 1.2 and 0.19 < used["memory_gb"] < 0.4
        assert used["net_mb_s"] >= 0
    finally:
        child.kill()
        child.wait()
    assert (ended := meter.sample([child.pid], time.monotonic())) is not None and ended["cpu"] == 0


def test_the_network_is_counted_without_the_loopback(tmp_path: Path) -> None:
    def device(received: int, sent: int) -> None:
        row = f"{received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0"
        (tmp_path / "net/dev").write_text(f"heading\nheading\n    lo: {row}\n  eth0: {row}\n")

    (tmp_path / "net").mkdir()
    device(0, 0)
    meter = usage.Meter(tmp_path)
    meter.sample([], 0.0)
    device(6_000_000, 2_000_000)
    assert meter.sample([], 4.0) == {"cpu": 0.0, "memory_gb": 0.0, "net_mb_s": 2.0}


def test_a_long_job_is_measured_more_seldom() -> None:
    assert [usage.interval(hours * 3600) for hours in (0, 0.9, 2, 23, 25)] == [10, 10, 60, 60, 300]


def test_the_report_has_them_thinned_and_believes_no_line(tmp_path: Path) -> None:
    lines = [
        {"time": 10.0 * n, "node": f"node{n % 2 + 1}", "cpu": 1.5, "memory_gb": 1.0, "net_mb_s": 3} for n in range(2000)
    ]
    text = (
        "".join(json.dumps(line) + "\n" for line in lines) + 'torn\n{"node": 3}\n[]\n{"time": "x", "node": "node1"}\n'
    )
    (tmp_path / "usage.jsonl").write_text(text)
    found = run_data.usage(tmp_path / "usage.jsonl")
    assert sorted(found) == ["node1", "node2"] and all(200 < len(rows) <= 300 for rows in found.values())
    assert found["node1"][0] == [0.0, 1.5, 1.0, 3.0]
    assert run_data.usage(tmp_path / "none") == {} and run_data.samples(tmp_path / "none") == []


def test_sampled_texts_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        sample.record(tmp_path, {"text": f"text {number}"})
    kept = [json.loads(line)["text"] for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert kept == [f"text {number}" for number in range(10, 30)]
    assert [one["text"] for one in run_data.samples(tmp_path / "samples.jsonl")] == ["text 27", "text 28", "text 29"]
    sample.record(tmp_path / "no such folder", {"text": "lost"})
