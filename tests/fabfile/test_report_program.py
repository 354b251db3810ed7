"""The report of a job that ran a user's program, of which there are no losses."""

from __future__ import annotations

import json
import re
from pathlib import Path

from fab_command import fab

from fabfile.launchers.program import Program
from fabfile.report.numbers import money
from node.job import files


def run_of_a_program(folder: Path) -> Path:
    """A run directory as `fab fetch` brings it."""
    run = folder / "train-1"
    run.mkdir()
    program = Program(argv=("python", "train.py", "--lr", "1e-3"), name="train")
    state = {"id": "train-1", "state": "FAILED", "reason": "rank 1 on node2 ended with exit code 7: no such column"}
    times = {"started": 1000.0, "ended": 1090.0}
    files.write(run / "state.json", {**state, **times, "exit_code": 7, "nodes": ["n1", "n2"]})
    files.write(run / files.PROGRAM, program.to_record())
    log = (
        "1000.000 n1 - attempt 1: 2 ranks on n1, n2",
        "1020.000 n1 - error: rank 0 on n1 ended with exit code 3: no such row",
        "1030.000 n1 - attempt 2: 2 ranks on n1, n2",
        "1031.000 n1 0 hello",
        "cut",
    )
    (run / "log").write_text("\n".join(log) + "\n")
    (run / "heartbeat").mkdir()
    files.write(run / "heartbeat" / "rank-0.json", {"step": 42, "pid": 1})
    used = [{"time": 1010.0 + 10 * i, "node": "n1", "cpu": 0.9, "memory_gb": 0.2, "net_mb_s": 1.0} for i in range(5)]
    (run / "usage.jsonl").write_text("".join(json.dumps(line) + "\n" for line in used))
    return run


def test_it_has_duration_nodes_end_and_command(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert fab("report", str(run_of_a_program(tmp_path)), "--out", str(page)) == 0
    text = page.read_text()
    facts = ("train-1", "no such column", "1 m 30 s", "n1, n2")
    for shown in (*facts, "fab launch --nodes 2 -- python train.py --lr 1e-3"):
        assert shown in text, shown
    assert "fab train" not in text
    assert "has done no step yet" not in text and "None was made" not in text
    tiles = dict(re.findall(r"<div><dt>([a-z ]+)</dt><dd>([^<]*)", text))
    assert tiles == {
        "duration": "1 m 30 s",
        "attempts": "2",
        "nodes": "2",
        "exit code": "7",
        "step": "42",
        "cost": money(None),
    }
    rows = re.findall(r"<li><time>([^<]*)</time><span class=\"who\">([^<]*)</span><span>([^<]*)</span></li>", text)
    assert ("0:00:00", "n1, n2", "rank 0 on n1 ended with exit code 3: no such row") in rows
    assert ("0:00:30", "n1, n2", "failed") in rows and ("0:00:31", "n1 rank=0", "hello") in rows
