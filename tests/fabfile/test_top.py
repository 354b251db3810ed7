"""`fab top`: nodes and ranks from real programs over sshd, on a terminal and without one, over lost connections."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sshd
from forwarded import end_sessions
from invoke.context import Context
from invoke.exceptions import Exit
from kube_cluster import served
from polling import until
from rich.console import Console

from fabfile import output
from fabfile.remote.fleet import Fleet
from fabfile.top import screen, view, watch
from fabfile.top.watch import News, Watcher
from fabfile.verbs.top import top
from infra.inventory import SshCluster, to_json

LINE = {"step": 7, "loss": 3.25, "tokens_per_s": 1234.5, "rank_seconds": [0.5, 2.0]}


def write_run(runs: Path, *pids: int) -> Path:
    """The run directory of a job under way, whose ranks are these processes, each on a node of its own."""
    run = runs / "demo-3"
    (run / "heartbeat").mkdir(parents=True)
    (runs / ".lock").touch()  # as the head takes it when it gives out numbers
    nodes = [f"node{number + 1}" for number in range(len(pids))]
    state = {"id": "demo-3", "state": "RUNNING", "nodes": nodes, "created": time.time(), "attempt": 1}
    (run / "state.json").write_text(json.dumps(state))
    (run / "job.toml").write_text("[train]\nsteps = 200\n")
    (run / "metrics.jsonl").write_text(f'{json.dumps({**LINE, "step": 6})}\n{json.dumps(LINE)}\n{{"step": 8, "lo')
    for rank, pid in enumerate(pids):
        folder = run / "nodes" / nodes[rank]
        folder.mkdir(parents=True)
        record = {"rank": rank, "node": nodes[rank], "wrapper": 1, "pid": pid, "state": "running"}
        (folder / f"rank-{rank}.json").write_text(json.dumps(record))
        beat = {"pid": pid, "step": 7 + rank, "phase": "train", "time": time.time()}
        (run / f"heartbeat/rank-{rank}.json").write_text(json.dumps(beat))
    return run


@pytest.fixture
def ranks() -> Iterator[list[int]]:
    """Two processes, as ranks of node1 and node2."""
    code = "import time; time.sleep(600)"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], env={"TRAINYARD_JOB": "demo-3", "TRAINYARD_NODE": f"node{number}"}
        )
        for number in (1, 2)
    ]
    yield [process.pid for process in started]
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def cluster(yard: sshd.Yard, tmp_path: Path) -> SshCluster:
    """Two nodes with a shared folder."""
    nodes = [yard.start(f"127.0.0.{n + 1}", sshd.free_port()).node(f"node{n}") for n in (1, 2)]
    made = replace(yard.cluster(*nodes), shared_dir=str(tmp_path / "fsx"))
    (tmp_path / "nodes.json").write_text(to_json(made))
    return made


def test_without_a_terminal_the_tables_are_printed_once(
    cluster: SshCluster, ranks: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "fsx/runs", *ranks)
    top.body(Context(), inventory=str(tmp_path / "nodes.json"))
    lines = capsys.readouterr().out.splitlines()
    assert re.match(r"NODE +CPU +MEMORY +NETWORK +JOB", lines[1])
    assert re.match(r"node1 +[0-9.]+( of \d+)? +[0-9.]+[MG].* +[0-9.]+ MB/s +-", lines[2]), lines[2]
    assert lines[3].startswith("node2 ") and lines[4] == ""
    assert lines[5] == "demo-3: step 7 of 200, loss 3.250, 1234 tok/s"
    assert lines[6].split() == view.RANKS
    first, second = lines[7].split(), lines[8].split()
    assert first[:4] == ["0", "node1", "7", "train"] and second[:4] == ["1", "node2", "8", "train"]
    assert first[6:][:4] == ["0.50", "s", "1.50", "s"] and second[6:][:4] == ["2.00", "s", "0.00", "s"]
    assert float(first[4]) >= 0 and first[5].endswith("M") and "ago" in lines[7]


def test_no_job_is_said(cluster: SshCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    top.body(Context(), once=True, inventory=str(tmp_path / "nodes.json"))
    assert capsys.readouterr().out.endswith("\nno job is under way\n")


def test_a_node_that_does_not_answer_is_named_and_the_others_are_shown(
    cluster: SshCluster, yard: sshd.Yard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yard.servers[1].stop()
    top.body(Context(), inventory=str(tmp_path / "nodes.json"))
    out = capsys.readouterr().out
    assert "MB/s" in out and re.search(r"node2 +- +- +- +- +node2 \(127.0.0.3:\d+\): Connection refused", out)
    yard.servers[0].stop()
    with pytest.raises(Exit, match="no node has answered") as caught:
        top.body(Context(), inventory=str(tmp_path / "nodes.json"))
    assert caught.value.code == 1


def test_a_lost_connection_is_shown_and_made_anew(
    cluster: SshCluster, yard: sshd.Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_AGAIN", 0.3)
    with Watcher(Fleet(cluster), 0.2) as watcher:
        watcher.wait(2, 30)
        assert not any(one.trouble for one in watcher.news().values())
        end_sessions(yard.servers[1])
        until(lambda: watcher.news()["node2"].trouble, 20)
        assert watcher.news()["node2"].sample, "the last one stays"
        until(lambda: not watcher.news()["node2"].trouble and watcher.news()["node2"].age < 1, 20)


def test_nothing_stays_on_the_nodes(cluster: SshCluster, tmp_path: Path) -> None:
    with Watcher(Fleet(cluster), 0.2) as watcher:
        watcher.wait(2, 30)
        assert alive(tmp_path)
    until(lambda: not alive(tmp_path), 20)


def alive(tmp_path: Path) -> str:
    return subprocess.run(["pgrep", "-f", rf"\.pyz top .* {tmp_path}"], capture_output=True, text=True).stdout


@pytest.mark.acceptance  # the command on a terminal, live
def test_on_a_terminal_it_is_live_until_ctrl_c(cluster: SshCluster, ranks: list[int], tmp_path: Path) -> None:
    run = write_run(tmp_path / "fsx/runs", *ranks)
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "fabfile", "top", "--every", "0.5", "--inventory", str(tmp_path / "nodes.json")]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    program = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    os.close(slave)
    seen = b""

    def shows(text: str) -> bool:
        nonlocal seen
        while select.select([master], [], [], 0)[0]:
            try:
                seen += os.read(master, 1 << 16)
            except OSError:  # it has ended
                break
        return text.encode() in seen

    try:
        until(lambda: shows("step 7 of 200"), 30, lambda: seen.decode(errors="replace"))
        with (run / "metrics.jsonl").open("a") as file:
            file.write(f"ss\n{json.dumps({**LINE, 'step': 8})}\n")
        until(lambda: shows("step 8 of 200"), 30, lambda: seen.decode(errors="replace"))
        program.send_signal(signal.SIGINT)
        assert program.wait(20) == 0
        until(lambda: shows("\x1b[?1049l"), 10)  # the screen is as it was before
        assert b"Traceback" not in seen
    finally:
        program.kill()
        os.close(master)


def test_on_kubernetes_the_nodes_are_those_that_the_jobs_keepers_report(
    tmp_path: Path, ranks: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "_target", [""])
    with served(tmp_path) as kube:
        run = write_run(Path(kube.cluster.shared_dir) / "runs", *ranks)
        used = [{"time": 1.0, "node": f"worker{n}", "cpu": n, "memory_gb": 1.5, "net_mb_s": 2.0} for n in (1, 2, 1)]
        (run / "usage.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in used))
        (tmp_path / "kube.json").write_text(to_json(kube.cluster))
        top.body(Context(), inventory=str(tmp_path / "kube.json"))
    out = capsys.readouterr().out
    assert re.search(r"\nworker1 +1\.0 +1\.5G +2\.0 MB/s +demo-3 +its ranks alone\nworker2 ", out)
    assert "demo-3: step 7 of 200" in out and "\nhead " not in out


def test_what_a_node_sends_is_not_trusted() -> None:
    evil = "\x1b[2Jx\n[red]"
    jobs = [{"id": evil, "nodes": 3, "line": {"step": "x", "loss": float("nan"), "rank_seconds": [None, "2", 1e400]}}]
    ranks = [{"job": evil, "rank": 1, "node": evil, "phase": evil, "cpu": "1", "age": []}, {"job": evil}, 7]
    for sample in ({"job": evil, "jobs": [*jobs, None, 3], "ranks": ranks}, {"jobs": 3, "ranks": {}, "cpu": {}}):
        news = {"node1": News(sample, 1.0, evil)}
        for machines in (True, False):
            shown = view.of(news, with_machines=machines)
            console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
            console.print(screen.drawn("lab", shown))
            text = console.export_text()
            assert "\x1b" not in text and all("\n" not in cell for row in shown.nodes for cell in row)
    assert view.of({"node1": News({"jobs": jobs, "ranks": ranks}, 1.0, "")}).jobs[0].ranks[0][0] == "1"


def test_a_program_is_as_far_as_its_slowest_process() -> None:
    ranks = [{"job": "prog-1", "rank": rank, "step": step} for rank, step in ((0, 9), (1, 7))]
    shown = view.of({"node1": News({"jobs": [{"id": "prog-1", "line": {}}], "ranks": ranks}, 0.0, "")})
    assert shown.jobs[0].title == "prog-1: step 7"


def test_old_news_say_how_old_they_are() -> None:
    shown = view.of({"node1": News({"cpu": 1.0}, 12.0, ""), "node2": News({}, 12.0, "node2: no answer")})
    assert shown.nodes[0][-1] == "no news for 12s (as 12s ago)" and shown.nodes[1][-1] == "node2: no answer"


def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from fabfile import program

    assert program.run(["top", "--every", "0.1"]) == 2
    assert "--every: must be a number of at least 0.5, not '0.1'" in capsys.readouterr().err
    assert program.run(["top", "--inventory", "/nonexistent"]) == 2
