"""`fab report`: what it reads, what it makes of it, and that nothing anybody says becomes part of the page's markup."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import run_folder
import sshd
from hypothesis import given
from hypothesis import strategies as st

from fabfile.report import bars, chart, curves, node_speed, numbers, page
from fabfile.report.chart_data import chart_data
from fabfile.report.parse import run_of
from fabfile.report.run import Machine, Run
from infra.inventory import Node, SshCluster, to_json
from node import run_data
from node.job import job_table

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = (
    "</style></title><script>alert(1)</script><img src=x onerror=alert(1)>\"' onload=alert(1) &lt; \u202e\x00\ud800 "
)
READY = {
    "profile": "native",
    "collectives": "gloo",
    "image": "0f3c",
    "versions": {"torch": "2.13.0", "os": "Debian 12"},
}


def read(folder: Path, **more: Any) -> Run:
    machines = [Machine(name, READY) for name in ("node1", "node2")] + [
        Machine("node3", {}, "not known now: no answer")
    ]
    return run_of(run_data.collect(folder), machines, {}, 1.0, **more)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return read(run_folder.write(tmp_path / "demo-1", run_folder.metrics(200), restart_at=100))


@pytest.fixture
def other(tmp_path: Path) -> Run:
    return read(run_folder.write(tmp_path / "demo-2", run_folder.metrics(120, lr=1e-3), lr=1e-3))


class Page(HTMLParser):
    """The elements of a page: every one of them closed, with what they say and link to."""

    VOID = ("meta",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self.titles: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "title":
            self.titles.append(data)
        elif "script" in self.open:
            self.scripts.append(data)
        elif "style" not in self.open:
            self.text += data + "\n"


def said(text: str) -> str:
    return re.sub(r"\s+", " ", Page(text).text)


def assert_only_own_scripts(text: str, found: Page) -> None:
    """The page's policy allows the two scripts that are in it, by their hashes, and no other."""
    allowed = re.findall(r"'sha256-([^']+)'", html.unescape(text.partition("</head>")[0]))
    data, *scripts = found.scripts
    assert [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts] == allowed
    assert set(json.loads(data)) == {"x", "units", "runs", "charts"} and "<" not in data


def test_a_run(run: Run) -> None:
    text = page.render([run])
    found, words = Page(text), said(text)
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
    assert "step 100\ntraining: " in "|".join(found.titles)
    assert "restart after step 100, without node3" in found.titles
    assert all(link.startswith("data:application/toml") for link in found.links)
    assert "://" not in text
    assert not found.names & {"img", "link", "iframe"} and len(found.scripts) == 3
    assert_only_own_scripts(text, found)


def test_two_runs(run: Run, other: Run) -> None:
    words = said(page.render([run, other]))
    assert "train.lr 0.0006 0.001" in words
    assert "train.steps 200 120" in words
    assert "train.micro_batch" not in words.partition("nats per token")[0]
    assert re.search(r"tokens per second 9,\d{3} 1\d\.\d k \+\d+ %", words)
    assert "demo-2 validation" in words
    assert "Nothing: configuration, nodes and versions are the same." in said(page.render([run, run]))


def test_two_runs_of_different_batches_are_drawn_over_tokens(tmp_path: Path, run: Run) -> None:
    half = read(run_folder.write(tmp_path / "half", run_folder.metrics(50, batch=6144), batch=6144))
    words = said(page.render([run, half]))
    assert "tokens 0 " in words
    assert "step 0" not in words


def test_where_the_time_went_adds_up(run: Run) -> None:
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


def test_a_nodes_speed_is_its_share_over_its_computing(run: Run) -> None:
    found = {name: node_speed.typical(series) for name, series in node_speed.by_node(run).items()}
    assert found["node1"] / found["node2"] == pytest.approx(1.12, rel=0.03)
    assert node_speed.by_node(run)["node3"][-1][0] == 100  # lost after that step
    assert sum(found.values()) == pytest.approx(12288 / 0.95, rel=0.05)


def test_several_ranks_of_a_node_are_one_speed(tmp_path: Path) -> None:
    folder = run_folder.write(tmp_path / "two", run_folder.metrics(30, ranks=6))
    spec = {"cluster": {"nodes": [{"name": f"node{i}", "slots": 2} for i in (1, 2, 3)]}}
    (folder / "spec.json").write_text(json.dumps(spec))
    assert list(node_speed.by_node(read(folder))) == ["node1", "node2", "node3"]
    (folder / "spec.json").unlink()  # six ranks on three nodes, nobody knows how: no speeds rather than wrong ones
    assert node_speed.by_node(read(folder)) == {}


def test_what_is_said_is_never_markup(tmp_path: Path) -> None:
    folder = run_folder.write(tmp_path / "demo-1", run_folder.metrics(60), restart_at=30)
    state = json.loads((folder / "state.json").read_text())
    names = [HOSTILE, "node2"]
    (folder / "state.json").write_text(json.dumps({**state, "state": "FAILED", "reason": HOSTILE, "nodes": names}))
    (folder / "spec.json").write_text(json.dumps({"launcher": HOSTILE, "cluster": {"nodes": [{"name": HOSTILE}]}}))
    quoted = json.dumps(HOSTILE.replace("\x00", "").replace("\ud800", ""))
    hostile_job = f"[run]\nname = {quoted}\n[{quoted}]\n{quoted} = {quoted}\n"
    (folder / "job.toml").write_text(hostile_job + (folder / "job.toml").read_text().partition("[run]")[0])
    shown = HOSTILE.replace("\ud800", "")
    with (folder / "log").open("a") as log:
        log.write(f"1763716002.0 <b>node1</b> - {shown}\n1763716003.0 node1 0 error: {shown}\n")
    for path in folder.glob("checkpoints/*/state.json"):
        path.write_text(json.dumps({"precision": HOSTILE, "ranks": [HOSTILE]}))
    hostile = {HOSTILE: HOSTILE, "torch": HOSTILE}
    ready = {"profile": HOSTILE, "versions": hostile, "cpu": {"model": HOSTILE, "cores": HOSTILE}, "image": HOSTILE}
    told = {**run_data.collect(folder), "id": HOSTILE}
    bad = run_of(told, [Machine(HOSTILE, ready), Machine("node2", {}, HOSTILE)])
    good = run_of(run_data.collect(folder))
    honest = [Page(page.render([good])), Page(page.render([good, good]))]
    for runs in ([bad], [bad, good], [good, bad]):
        text = page.render(runs)
        text.encode()  # no lone surrogate is left
        found = Page(text)
        assert text.count("<script") == text.count("</script") == 3 and "<script>alert" not in text
        assert found.names <= honest[0].names | honest[1].names
        assert found.attributes <= honest[0].attributes | honest[1].attributes
        assert all(link.startswith("data:application/toml;") for link in found.links)
        assert "alert(1)" in found.text  # shown, as text
        assert not set("\u202e\x00") & set(text)


def test_the_data_of_the_charts_hold_every_point(run: Run, other: Run) -> None:
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
    words = said(page.render(each))
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
    words = said(text)
    assert "Processors cores busy" in words and "Network MB per second" in words
    assert "What it writes def <main>: return 1 by the model of step-000040" in words
    assert_only_own_scripts(text, Page(text))


def test_hidden_characters_are_shown(run: Run) -> None:
    text = page.render([replace(run, state="FAILED", reason="\x1b[31m\u202e & <b>")])
    assert '<p class="reason">\ufffd[31m\ufffd &amp; &lt;b&gt;</p>' in text


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
    assert "4 lines of the metrics could not be read." in said(page.render([found]))


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
    assert "Each point is the mean of 6 steps. Not drawn, to show the rest: before step 160, up to 6" in said(text)
    assert len(text) < 450_000, "the library of the charts and its data among them"


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "FAILED", "CANCELLED", "SUCCEEDED", None])
def test_hardly_anything_is_known(tmp_path: Path, state: str | None) -> None:
    folder = tmp_path / "demo-1"
    folder.mkdir()
    if state:
        (folder / "state.json").write_text(json.dumps({"id": "demo-1", "state": state, "nodes": ["node1"]}))
    words = said(page.render([read(folder)]))
    assert "demo-1 has done no step yet: there is nothing to draw." in words
    assert "There is no job.toml in its run directory." in words


def test_a_job_whose_launcher_is_gone_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `fab jobs` says, and after the same time."""
    run = tmp_path / "runs" / "demo-1"
    run.mkdir(parents=True)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)

    def told(*, active: bool, age: float) -> tuple[str, str]:
        monkeypatch.setattr(job_table, "is_active", lambda _job: active)
        state = {"id": "demo-1", "state": "RUNNING", "created": time.time() - age, "nodes": ["node1"]}
        (run / "state.json").write_text(json.dumps(state))
        assert run_data.main(["runs", "demo-1"]) == 0
        (one,) = json.loads(capsys.readouterr().out)["runs"]
        shown, (listed,) = run_of(one), job_table.every(tmp_path / "runs")
        assert (shown.state, shown.reason) == (listed["state"], listed.get("reason", ""))
        return shown.state, shown.reason

    assert told(active=False, age=100.0) == ("FAILED", "its launcher on the head is gone")
    assert told(active=True, age=100.0) == ("RUNNING", "")
    assert told(active=False, age=20.0) == ("RUNNING", ""), "it may not have begun"


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
KEYS = ["state", "spec", "job_toml", "metrics", "log", "checkpoints", "id", "now", "from_head"]
INNER = [
    *("points", "validations", "best", "totals", "width", "skipped", "steps", "newest", "first", "last", "attempts"),
    *("notes", "left_out", "ends", "state", "nodes", "cluster", "started", "ended", "reason", "price_per_hour"),
]
POINT = [*Run.__dataclass_fields__, "step", "loss", "lr", "val_loss", "rank_seconds", "time", "name", "slots"]


@given(
    st.dictionaries(
        st.sampled_from(KEYS),
        anything
        | st.dictionaries(
            st.sampled_from(INNER),
            anything
            | st.lists(st.dictionaries(st.sampled_from(POINT), anything), max_size=3)
            | st.lists(st.tuples(*[st.floats() | st.text()] * 4).map(list), max_size=3),
        ),
    )
)
def test_whatever_a_head_tells_there_is_a_page(told: dict[str, Any]) -> None:
    found = run_of(told)
    Page(page.render([found]))
    Page(page.render([found, found]))


@pytest.mark.parametrize(
    "form, value, text",
    [
        *[(numbers.count, v, t) for v, t in ((1_234_567, "1.2 M"), (9830, "9,830"), (98304, "98.3 k"), (9e9, "9.0 B"))],
        *[(numbers.count, v, t) for v, t in ((0, "0"), (999_960, "1.0 M"), (1.25e8, "125 M"), (None, "\N{EN DASH}"))],
        *[
            (numbers.span, v, t)
            for v, t in ((200, "3 m 20 s"), (0.42, "0.42 s"), (59.7, "1 m 0 s"), (12000, "3 h 20 m"))
        ],
        *[(numbers.span, v, t) for v, t in ((0.0012, "1.2 ms"), (7.04, "7.0 s"), (187_200, "2 d 4 h"), (0, "0 s"))],
        *[(numbers.money, v, t) for v, t in ((0, "$0.00"), (0.001, "under $0.01"), (1234.5, "$1,234.50"))],
        *[(numbers.percent, v, t) for v, t in ((0.71, "71 %"), (0.004, "0.4 %"), (1e-5, "under 0.1 %"), (0, "0 %"))],
        *[(numbers.small, v, t) for v, t in ((6e-4, "6\N{MULTIPLICATION SIGN}10⁻⁴"), (0.05, "0.05"), (0, "0"))],
        *[(numbers.plain, v, t) for v, t in ((12345, "12,345"), (3.25, "3.25"), (0.71, "0.71"), (200, "200"))],
        *[(numbers.moment, v, t) for v, t in ((1_763_716_000, "2025-11-21 09:06 UTC"), (1e30, "\N{EN DASH}"))],
    ],
)
def test_numbers_as_a_person_writes_them(form: Any, value: float | None, text: str) -> None:
    assert form(value) == text


def test_changes() -> None:
    assert numbers.change(100, 112) == "+12 %"
    assert numbers.change(2.5, 2.49) == "\N{MINUS SIGN}0.4 %"
    assert numbers.change(10, 81) == "\N{MULTIPLICATION SIGN}8.1"
    assert numbers.change(3, 3) == "same"
    assert (numbers.change(0, 3), numbers.change(1, 0), numbers.change(None, 3)) == ("", "", "")


@given(st.floats(-1e12, 1e12), st.floats(-1e12, 1e12))
def test_ticks_enclose_their_values(one: float, two: float) -> None:
    low, high = sorted((one, two))
    found = numbers.ticks(low, high)
    slack = 1e-6 * max(abs(low), abs(high), 1e-300)
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert 2 <= len(found) <= 12
    assert found == sorted(set(found))


def test_an_axis_is_in_one_unit() -> None:
    assert numbers.axis([0, 5000, 10000]) == ["0", "5 k", "10 k"]
    assert numbers.axis([2, 2.5, 3]) == ["2", "2.5", "3"]
    times = "\N{MULTIPLICATION SIGN}"
    assert numbers.axis([0, 2e-4, 4e-4]) == ["0", f"2{times}10⁻⁴", f"4{times}10⁻⁴"]


def test_names_at_the_ends_of_lines_do_not_overlap() -> None:
    lines = [chart.Line(f"line{i}", [(0, 1.0), (10, 2.0 + i / 1000)], "a") for i in range(5)]
    tops = [top for top, _, _ in chart.Drawing(chart.Chart(title="t", unit="u", lines=lines)).names()]
    assert len(tops) == 5
    assert all(below - above > 14 for above, below in pairwise(tops))
    assert tops[0] > 0
    assert tops[-1] < 100


def fab(folder: Path, *argv: str | Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    command = [sys.executable, "-m", "fabfile", "report", *argv]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)


def test_of_folders_that_were_fetched(tmp_path: Path) -> None:
    run_folder.write(tmp_path / "runs/demo-1", run_folder.metrics(20))
    run_folder.write(tmp_path / "runs/demo-2", run_folder.metrics(30))
    done = fab(tmp_path, "runs/demo-1", "runs/demo-2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "next: open report-demo-1-and-demo-2.html in a browser"
    assert "demo-2 training" in said((tmp_path / "report-demo-1-and-demo-2.html").read_text())
    done = fab(tmp_path, "runs/demo-1", "--out", "nowhere/x.html")
    assert (done.returncode, done.stderr.strip()) == (2, "nowhere/x.html: No such file or directory")
    done = fab(tmp_path, "runs/demo-3")
    assert done.returncode == 2
    assert done.stderr.strip().endswith("this is no run directory")
    assert not list(tmp_path.glob(".report*"))


def test_watch_follows_a_run_to_its_end(tmp_path: Path) -> None:
    folder = run_folder.write(tmp_path / "runs/demo-1", run_folder.metrics(20))
    over = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**over, "state": "RUNNING", "ended": None}))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    program = (
        "import sys; from fabfile.program import run; sys.modules['fabfile.verbs.report'].REFRESH = 1; "
        "sys.exit(run(sys.argv[1:]))"
    )
    argv = [sys.executable, "-c", program, "report", "runs/demo-1", "--watch"]
    watching = subprocess.Popen(argv, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    assert watching.stdout
    assert "it follows demo-1" in watching.stdout.readline()
    assert 'http-equiv="refresh"' in (tmp_path / "report-demo-1.html").read_text()
    (folder / "state.json").write_text(json.dumps(over))
    out, _ = watching.communicate(timeout=60)
    assert watching.returncode == 0 and "written: report-demo-1.html" in out
    assert 'http-equiv="refresh"' not in (tmp_path / "report-demo-1.html").read_text()


def test_over_ssh(tmp_path: Path) -> None:
    sshd.require()
    (tmp_path / "home").mkdir()
    yard = sshd.Yard(tmp_path, [])
    sshd.keygen(yard.identity)
    port = sshd.free_port()
    try:
        servers = [yard.start(f"127.0.0.{i + 2}", port) for i in range(2)]
        ready = servers[0].root / "var/lib/trainyard/ready.json"
        ready.parent.mkdir(parents=True)
        ready.write_text(json.dumps(READY))
        lost = Node(name="node3", private_ip="127.0.0.77", ssh_port=port, host_key=servers[0].host_key)
        nodes = [server.node(f"node{i + 1}") for i, server in enumerate(servers)]
        cluster: SshCluster = yard.cluster(*nodes, lost)
        inventory = {**json.loads(to_json(cluster)), "shared_dir": str(tmp_path / "shared")}
        (tmp_path / "inventory.json").write_text(json.dumps(inventory))
        run_folder.write(tmp_path / "shared/runs/demo-1", run_folder.metrics(20))
        done = fab(tmp_path, "1", "--inventory", "inventory.json", "--out", "page.html")
        assert done.returncode == 0, done.stderr
        words = said((tmp_path / "page.html").read_text())
        assert "demo-1 ✓ succeeded 3 nodes (node1, node2, node3), 3 ranks" in words
        assert "torch 2.13.0" in words
        assert "node3: not known now: node3 (127.0.0.77" in words
        done = fab(tmp_path, "demo-7", "--inventory", "inventory.json")
        assert (done.returncode, done.stderr.strip()) == (2, "no run 'demo-7' on node1; there are: demo-1")
    finally:
        yard.stop()


def test_the_templates_are_part_of_the_installed_package(tmp_path: Path) -> None:
    """In the editable installation they are in the checkout; `pip install .` must copy them."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.split("\0"):
        if name.startswith(("infra/", "fabfile/", "node/", "pyproject.toml", "README.md")) and (ROOT / name).exists():
            (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / "source" / name)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", tmp_path / "installed", tmp_path / "source"], check=True, timeout=120)
    program = (
        "from fabfile.report import page; from fabfile.report.parse import run_of; "
        "print(page.__file__); print(page.render([run_of({'id': 'demo-1'})]))"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "installed")) and "demo-1 has done no step yet" in done.stdout
