"""`fab report`: what it makes of a run, or of several side by side."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
import time
from pathlib import Path
from typing import Any

import pytest
import run_folder
from report_page import Page, read, visible_text

from fabfile.report import bars, curves, page
from fabfile.report.chart import chart_data
from fabfile.report.load import run_of
from fabfile.report.run import JobRun
from node import run_data
from node.job import job_table


@pytest.fixture
def run(tmp_path: Path) -> JobRun:
    return read(run_folder.write(tmp_path / "demo-1", run_folder.metrics(200), restart_at=100))


@pytest.fixture
def other(tmp_path: Path) -> JobRun:
    return read(run_folder.write(tmp_path / "demo-2", run_folder.metrics(120, lr=1e-3), lr=1e-3))


def assert_only_own_scripts(text: str, found: Page) -> None:
    """The page's policy allows the three scripts that are in it, by their hashes, and no other."""
    allowed = re.findall(r"'sha256-([^']+)'", html.unescape(text.partition("</head>")[0]))
    data, *scripts = found.scripts
    assert [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts] == allowed
    assert set(json.loads(data)) == {"x", "units", "runs", "charts"} and "<" not in data


def test_a_run(run: JobRun) -> None:
    text = page.render([run])
    found, words = Page(text), visible_text(text)
    for part in (
        "demo-1 ✓ succeeded 3 nodes (node1, node2, node3), 3 ranks, at the end without node3",
        "duration 4 m 19 s 1 restart steps 200 of 200 tokens 2.5 M",
        "cost $0.00 $0.00 an hour",
        "4 made, one every 50 steps. Still there: steps 150 and 200.",
        "fab train demo-1.toml --nodes 3",
        "node3: not known now: no answer",
        "torch 2.13.0",
        "global_batch_tokens = 12288",
        "0:02:11 node1 error: node3 (rank 2) is cut off: no word for 6 s",
    ):
        assert part in words, part
    assert "Ticks on the axis: checkpoints. Dashed: restart after step 100, without node3." in words
    assert all(link.startswith("data:application/toml") for link in found.links)
    assert "://" not in text
    assert not found.names & {"img", "link", "iframe"} and len(found.scripts) == 4
    assert_only_own_scripts(text, found)


def test_two_runs(run: JobRun, other: JobRun) -> None:
    words = visible_text(page.render([run, other]))
    assert "train.lr 0.0006 0.001" in words
    assert "train.steps 200 120" in words
    assert "train.micro_batch" not in words.partition("nats per token")[0]
    assert re.search(r"tokens per second 9,\d{3} 1\d\.\d k \+\d+ %", words)
    assert "demo-2 validation" in words
    assert "Nothing: configuration, nodes and versions are the same." in visible_text(page.render([run, run]))


def test_of_more_runs_than_colours_all_are_in_the_table_and_the_best_six_are_drawn(tmp_path: Path) -> None:
    runs = []
    for number in range(1, 9):
        lines = run_folder.metrics(20, lr=number / 1e4)
        lines[-1]["val_loss"] = {3: 9.0, 5: 8.0}.get(number, 3 + number / 10)
        runs.append(read(run_folder.write(tmp_path / f"demo-{number}", lines, lr=number / 1e4)))
    left_out = {"demo-3", "demo-5"}
    assert [run.id for run in runs if run not in curves.drawn(runs)] == sorted(left_out)
    text = page.render(runs)
    words = visible_text(text)
    table = words.partition("Results")[2].partition("8 runs.")[0]
    assert all(f"demo-{number} {number / 1e4:g} succeeded" in table for number in range(1, 9)), table
    assert "run train.lr state duration" in table and "9.000" in table
    assert "8 runs. Above and below this table are the 6 with the lowest validation loss." in words
    others = words.replace(table, "")
    assert not any(name in others for name in left_out) and "demo-8" in others
    assert {line["name"].split()[0] for line in json.loads(Page(text).scripts[0])["charts"][0]["lines"]} == {
        run.id for run in runs if run.id not in left_out
    }


def test_a_masked_model_has_perplexity_where_others_have_bits_per_byte(tmp_path: Path, other: JobRun) -> None:
    lines = run_folder.metrics(60)
    for line in lines:
        if line.pop("val_bits_per_byte", None):
            line["val_perplexity"] = round(math.exp(line["val_loss"]), 3)
    masked = read(run_folder.write(tmp_path / "roberta-1", lines))
    lowest = min(line["val_perplexity"] for line in lines if "val_perplexity" in line)
    assert masked.best is not None and masked.best.perplexity == lowest and masked.best.bits_per_byte is None
    words = visible_text(page.render([masked]))
    assert f"perplexity {lowest:.3f}, step" in words and "bits per byte" not in words
    both = visible_text(page.render([masked, other]))
    assert "its perplexity" in both and "its bits per byte" in both


def test_two_runs_of_different_batches_are_drawn_over_tokens(tmp_path: Path, run: JobRun) -> None:
    half = read(run_folder.write(tmp_path / "half", run_folder.metrics(50, batch=6144), batch=6144))
    assert chart_data([run, half], curves.charts_of([run, half]))["x"] == "tokens"
    assert chart_data([run, run], curves.charts_of([run, run]))["x"] == "step"


def test_where_the_time_went_adds_up(run: JobRun) -> None:
    found = bars.parts(run)
    assert list(found) == ["compute", "communication", "data", "eval", "checkpoint", "other"]
    assert sum(found.values()) == pytest.approx(run.duration)
    assert found["other"] > 35  # the restart


def test_time_between_an_end_and_going_on_is_not_the_jobs(tmp_path: Path) -> None:
    folder = run_folder.write(tmp_path / "demo-9", run_folder.metrics(20))
    before = read(folder).duration
    assert before
    state = json.loads((folder / "state.json").read_text())
    went_on = state["ended"] + 3600
    with (folder / "log").open("a") as log:
        log.write(
            f"{went_on} node1 - attempt 2: 3 ranks on node1, node2, node3\n{went_on + 9} node1 - demo-9 SUCCEEDED\n"
        )
    (folder / "state.json").write_text(json.dumps({**state, "ended": went_on + 9}))
    after = read(folder)
    assert after.paused == pytest.approx(3600, abs=0.1)
    assert after.duration == pytest.approx(before + 9, abs=0.1)


def test_a_nodes_speed_is_its_share_over_its_computing(run: JobRun) -> None:
    found = {name: bars.typical(series) for name, series in run.node_speeds().items()}
    assert found["node1"] / found["node2"] == pytest.approx(1.12, rel=0.03)
    assert run.node_speeds()["node3"][-1][0] == 100  # lost after that step
    assert sum(found.values()) == pytest.approx(12288 / 0.95, rel=0.05)


def test_several_ranks_of_a_node_are_one_speed(tmp_path: Path) -> None:
    folder = run_folder.write(tmp_path / "two", run_folder.metrics(30, ranks=6))
    spec = {"cluster": {"nodes": [{"name": f"node{i}", "slots": 2} for i in (1, 2, 3)]}}
    (folder / "spec.json").write_text(json.dumps(spec))
    assert list(read(folder).node_speeds()) == ["node1", "node2", "node3"]
    (folder / "spec.json").unlink()  # six ranks on three nodes, nobody knows how: no speeds rather than wrong ones
    assert read(folder).node_speeds() == {}


def test_the_data_of_the_charts_hold_every_point(run: JobRun, other: JobRun) -> None:
    data = chart_data([run, other], curves.charts_of([run, other]))
    assert [unit for unit, _ in data["units"]] == ["step", "time", "tokens"]
    first = data["runs"][0]
    assert first["step"][-1] == 200 and first["tokens"][-1] == 200 * 12288
    computed = sum(12288 / point.tokens_per_s for point in run.points if point.tokens_per_s)
    assert first["time"][-1] == pytest.approx(computed, rel=1e-3), (
        "the time of the training, without the restart's pause"
    )
    loss = data["charts"][0]["lines"]
    assert [line["run"] for line in loss] == [0, 0, 1, 1] and len(loss[0]["y"]) == 200
    assert len(loss[1]["points"]) == 10 and loss[1]["dots"]


def test_more_than_two_runs_are_compared(tmp_path: Path) -> None:
    each = [
        read(run_folder.write(tmp_path / f"demo-{n}", run_folder.metrics(20 * n), lr=n * 1e-3)) for n in (1, 2, 3, 4)
    ]
    words = visible_text(page.render(each))
    assert "demo-1 demo-2 demo-3 demo-4 state succeeded succeeded succeeded succeeded" in words
    assert "train.lr 0.001 0.002 0.003 0.004" in words


def test_what_the_nodes_were_used_for_and_what_was_sampled(tmp_path: Path) -> None:
    folder = run_folder.write(tmp_path / "demo-1", run_folder.metrics(40))
    rows = [
        {
            "time": run_folder.BEGAN + 10 * n,
            "node": f"node{k}",
            "cpu": 0.9 + n / 100,
            "memory_gb": 1.2,
            "net_mb_s": 8.5,
        }
        for n in range(12)
        for k in (1, 2)
    ]
    (folder / "usage.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sample = {"time": 1, "model": "step-000040", "text": "def <main>:\n    return 1"}
    (folder / "samples.jsonl").write_text(json.dumps(sample) + "\n")
    found = read(folder)
    assert found.usage["node2"][0] == (run_folder.BEGAN, 0.9, 1.2, 8.5)
    text = page.render([found])
    words = visible_text(text)
    assert "Processors cores busy" in words and "Network MB per second" in words
    assert "What it writes def <main>: return 1 by the model of step-000040" in words
    assert_only_own_scripts(text, Page(text))


def test_what_a_manager_decided_is_shown_with_its_time_and_cost(tmp_path: Path) -> None:
    folder = run_folder.write(tmp_path / "demo-1", run_folder.metrics(50))
    assert "What its manager decided" not in page.render([read(folder)])
    lines = [
        {"time": run_folder.BEGAN + 62, "text": "to be replaced: node3: <gone>", "usd": 1.25},
        {"time": "?", "text": 7, "usd": None},
    ]
    (folder / "managed.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"time"')
    text = page.render([read(folder)])
    shown = visible_text(text).partition("What its manager decided")[2].partition("What the log tells")[0]
    assert "$1.25" in shown and "to be replaced: node3: <gone>" in shown and "<gone>" not in text, shown


def test_lines_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    folder = run_folder.write(tmp_path / "demo-1", run_folder.metrics(10))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(
            '{"step": 11}\n[]\n{"step": "twelve"}\n{"loss": 1}\n{"step": 12, "loss": NaN, "seconds": 3}\n{"step": 1'
        )
    found = read(folder)
    assert found.skipped == 4
    assert [point.step for point in found.points] == [*range(1, 13)]
    assert found.last.loss is None
    assert "4 lines of the metrics could not be read." in visible_text(page.render([found]))


def test_steps_done_again_count_once(tmp_path: Path) -> None:
    lines = run_folder.metrics(60)
    folder = run_folder.write(tmp_path / "demo-1", [*lines[:50], *lines[29:]])
    found = read(folder)
    assert [point.step for point in found.points] == [*range(1, 61)]
    assert [one.step for one in found.validations] == [20, 40, 60]


def test_a_long_run_is_thinned(tmp_path: Path) -> None:
    lines = run_folder.metrics(8000)
    lines[4001]["grad_norm"] = 99.0
    found = read(run_folder.write(tmp_path / "long", lines))
    assert len(found.points) <= run_data.LIMIT
    assert sum(point.steps for point in found.points) == 8000
    assert max(point.grad_norm or 0 for point in found.points) == 99.0
    assert found.totals["compute"] == pytest.approx(sum(line["seconds"]["compute"] for line in lines))
    text = page.render([found])
    assert "Each point is the mean of 6 steps. Not drawn, to show the rest: before step 160, up to 6" in visible_text(
        text
    )
    assert len(text) < 300_000, "the library of the charts and its data among them"


def test_only_a_long_run_is_drawn_without_its_steep_start(tmp_path: Path) -> None:
    """Two points of one line in its first 2 % make a run long, however many short runs are beside it."""

    def note(*lengths: int) -> str:
        runs = [read(run_folder.write(tmp_path / f"{lengths}-{i}", steep(n))) for i, n in enumerate(lengths)]
        return curves.loss(runs).note

    def steep(length: int) -> list[Any]:
        lines = run_folder.metrics(length)
        return [{**line, "loss": 90.0 if index == 0 else 3.0 + index / 1000} for index, line in enumerate(lines)]

    assert "Not drawn" in note(160) and "Not drawn" in note(160, 60)
    assert "Not drawn" not in note(60) and "Not drawn" not in note(60, 60)


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "FAILED", "CANCELLED", "SUCCEEDED", None])
def test_hardly_anything_is_known(tmp_path: Path, state: str | None) -> None:
    folder = tmp_path / "demo-1"
    folder.mkdir()
    if state:
        (folder / "state.json").write_text(json.dumps({"id": "demo-1", "state": state, "nodes": ["node1"]}))
    words = visible_text(page.render([read(folder)]))
    assert "demo-1 has done no step yet: there is nothing to draw." in words
    assert "There is no job.toml in its run directory." in words


def test_a_job_whose_launcher_is_gone_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `fab jobs` says, and after the same time."""
    run = tmp_path / "runs" / "demo-1"
    run.mkdir(parents=True)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)

    def shown_state(*, active: bool, age: float) -> tuple[str, str]:
        monkeypatch.setattr(job_table, "is_active", lambda _job: active)
        state = {"id": "demo-1", "state": "RUNNING", "created": time.time() - age, "nodes": ["node1"]}
        (run / "state.json").write_text(json.dumps(state))
        assert run_data.main(["runs", "demo-1"]) == 0
        (one,) = json.loads(capsys.readouterr().out)["runs"]
        shown, (listed,) = run_of(one), job_table.every(tmp_path / "runs")
        assert (shown.state, shown.reason) == (listed["state"], listed.get("reason", ""))
        return shown.state, shown.reason

    assert shown_state(active=False, age=100.0) == ("FAILED", "its launcher on the head is gone")
    assert shown_state(active=True, age=100.0) == ("RUNNING", "")
    assert shown_state(active=False, age=20.0) == ("RUNNING", ""), "it may not have begun"
