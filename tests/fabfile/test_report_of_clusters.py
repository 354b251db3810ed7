"""The report of one job on several clusters: who they are, what they have exchanged and waited, each with its cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import run_folder
from fab_command import fab
from memory_backend import MemoryBackend

from fabfile import backends
from fabfile.report import curves, details, load, page
from fabfile.report.chart import chart_data
from node import run_data


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of the second of two clusters, of three rounds; the second round was without the other one."""
    folder = tmp_path / "demo-1"
    run_folder.write(folder, run_folder.metrics(30))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for number, clusters in enumerate(([1, 2], [2], [1, 2]), 1):
        facts = {"sent": 2_000_000, "received": 1_500_000, "waited": 1.5}
        lines[10 * number - 1]["outer"] = {"round": number, "clusters": clusters, **facts}
        lines[10 * number - 1]["seconds"]["exchange"] = 1.5
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    known = [{"cluster": 1, "name": "west", "run": "demo-7"}, {"cluster": 2, "name": "east", "run": "demo-1"}]
    (folder / "clusters.json").write_text(json.dumps({"cluster": 2, "exchange": "s3://b/x", "clusters": known}))
    return folder


def test_what_was_exchanged_and_with_whom(run: Path) -> None:
    found = load.from_folder(run)
    expected = (
        "Trained together with demo-7 on west: 3 rounds, of which 2 had the most clusters; 6.0 MB sent, 4.5 MB"
        " received, 4.5 s waited for the others."
    )
    assert details.clusters(found) == expected
    rows = {row[0]: row[1] for row in details.results([found])}
    assert [rows[name] for name in ("rounds with other clusters", "bytes sent to them", "bytes received")] == [
        *("3", "6.0 MB", "4.5 MB"),
    ]
    html = page.render([found])
    assert expected in html and "with the other clusters, not hidden behind the steps" in html


def test_a_steps_time_is_that_of_the_clusters_own_tokens(run: Path) -> None:
    """Its tokens per second are its own, the tokens all clusters': a step of one second takes one on the time axis."""
    text = (run / "job.toml").read_text()
    (run / "job.toml").write_text(f'{text}\n[outer]\nclusters = 2\ncluster = 2\nshares = "3,1"\n')
    alone = load.from_folder(run)
    windows = int(alone.batch or 0) // int(alone.config["model.block_size"])
    own = (windows - windows * 3 // 4) * alone.config["model.block_size"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [{**line, "tokens_per_s": own / 1.0} for line in lines]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = load.from_folder(run)
    assert chart_data([found], curves.charts_of([found]))["runs"][0]["time"] == [float(step) for step in range(1, 31)]
    rows = {row[0] for row in details.results([found])}
    assert {"tokens, all clusters'", "tokens per second, its own cluster's"} < rows
    notes = {name: more for name, _, more in details.tiles(found)}
    assert notes["tokens"] == "of all clusters" and notes["tokens a second"].startswith("of this cluster")


def test_a_run_of_one_cluster_says_nothing_of_it(tmp_path: Path) -> None:
    run_folder.write(tmp_path / "demo-1", run_folder.metrics(30))
    found = load.from_folder(tmp_path / "demo-1")
    assert details.clusters(found) == "" and run_data.exchanged(tmp_path / "demo-1" / "metrics.jsonl") == {}
    assert found.own_share == 1 and {"tokens", "tokens per second"} < {row[0] for row in details.results([found])}
    assert "Trained together" not in page.render([found])


def test_the_runs_of_two_stacks_on_one_page(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def connect(stack: str, _inventory: str) -> MemoryBackend:
        asked.append(stack)
        return MemoryBackend(name=stack, data={"demo-1": run_data.collect(run)})

    monkeypatch.setattr(backends, "connect", connect)
    monkeypatch.chdir(tmp_path)
    assert fab("report", "demo-1", "west:demo-1", "--stack", "east") == 0
    assert asked == ["east", "west"]
    html = (tmp_path / "report-demo-1-and-west-demo-1.html").read_text()
    assert ">west:demo-1<" in html and "bytes sent to them" in html
