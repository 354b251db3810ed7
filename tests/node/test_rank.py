"""A rank: the wrapper around it, and its node's keeper."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from polling import until

from fabfile.launchers import nodes_to_text
from infra.inventory import Node
from node.job import cleanup, files, keeper, watched_rank
from node.job.spec import KeeperSpec
from training.metrics import progress, spent

ROOT = Path(__file__).resolve().parents[2]


def wrapped(tmp_path: Path, program: str, **environment: str) -> subprocess.Popen[str]:
    """A rank under its wrapper, as a launcher starts it."""
    code = "import sys; from node.main import main; sys.exit(main(sys.argv[1:]))"
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "RUN_DIR": str(tmp_path),
        "TRAINYARD_NODES": nodes_to_text([Node(name="node1", private_ip="127.0.0.1")]),
        "TRAINYARD_JOB": f"test-{tmp_path.name}-1",
        "PMI_RANK": "0",
        **environment,
    }
    argv = [sys.executable, "-c", code, "rank", "--", sys.executable, "-u", "-c", program]
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_wrapper_keeps_lines_and_how_the_rank_ended(tmp_path: Path) -> None:
    program = "import sys; print('a\\rb'); print('error: no room'); print('half', end=''); sys.exit(3)"
    wrapper = wrapped(tmp_path, program)
    state = until(lambda: ended(tmp_path))
    assert (state["code"], state["last"], state["node"]) == (3, "no room", "node1")
    lines = [line.split(" ", 1)[1] for line in (tmp_path / "nodes/node1/rank-0.log").read_text().splitlines()]
    assert lines[1:] == ["b", "error: no room", "half"] and lines[0].startswith("on node1: 1 thread on")
    wrapper.kill()
    wrapper.communicate()


def ended(tmp_path: Path) -> dict[str, Any]:
    found = files.read(tmp_path / "nodes/node1/rank-0.json")
    return found if found.get("state") == "exited" else {}


def test_a_rank_dies_with_its_wrapper(tmp_path: Path) -> None:
    wrapper = wrapped(tmp_path, "import time; time.sleep(60)")
    pid = until(lambda: files.read(tmp_path / "nodes/node1/rank-0.json")).get("pid")
    job = f"test-{tmp_path.name}-1"
    assert len(cleanup.processes(job)) == 2
    wrapper.kill()
    wrapper.communicate()
    until(lambda: watched_rank.process_state(pid) == "")
    until(lambda: cleanup.processes(job) == [])


def test_the_keeper_tells_lines_steps_a_stop_and_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_rank, "STOPPED_SECONDS", 0.2)
    program = (
        "import json,os,signal,sys,time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('hello')\n"
        "beat = {'step': 4, 'time': time.time(), 'phase': 'train', 'pid': os.getpid()}\n"
        f"open('{tmp_path}/heartbeat/rank-0.json', 'w').write(json.dumps(beat)); time.sleep(60)"
    )
    (tmp_path / "heartbeat").mkdir()
    wrapper = wrapped(tmp_path, program)
    path = tmp_path / "nodes/node1/rank-0.json"
    until(path.exists)
    rank, events = watched_rank.Rank(0, path, tmp_path), []

    def events_of(kind: str) -> Any:
        events.extend(rank.news())
        return [event for event in events if event["event"] == kind]

    until(lambda: "hello" in [event["text"] for event in events_of("log")])
    step = until(rank.step)
    assert (step["step"], step["phase"]) == (4, "train") and step["age"] < 30
    pid = files.read(path)["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert until(lambda: events_of("stopped")) == [{"event": "stopped", "rank": 0}]
    os.kill(pid, signal.SIGCONT)
    rank.term()
    assert until(lambda: [event for event in events_of("rank") if event["state"] == "exited"])[0]["code"] == 0
    assert wrapper.wait(10) == 0
    wrapper.communicate()


def test_the_keeper_hands_on_how_long_the_ranks_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = keeper.Keeper(KeeperSpec(id="job-1", node="node1", run_dir=str(tmp_path), job=""))
    holder.folder.mkdir(parents=True)
    words = iter([b"beat\nterm 2", b"5.0\nend\n"])
    monkeypatch.setattr(select, "select", lambda *_: ([0], [], []))
    monkeypatch.setattr(os, "read", lambda *_: next(words))
    holder._listen()
    left = json.loads((holder.folder / "stop-by.json").read_text())["by"] - time.time()
    assert 20 < left <= 25 and holder._term.is_set() and holder._orders.empty()


def test_the_keeper_tells_when_its_node_ends_and_that_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "limits.json"
    notice = tmp_path / "notice.json"
    monkeypatch.setattr(files, "LIMITS", record)
    monkeypatch.setattr(files, "NOTICE", notice)
    holder = keeper.Keeper(KeeperSpec(id="job-1", node="node1", run_dir=str(tmp_path), job=""))

    def new_events() -> list[dict[str, Any]]:
        holder._look_at_limits()
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert new_events() == [], "a node without limits"
    record.write_text(json.dumps({"deadline": time.time() + 100}))
    (event,) = new_events()
    assert event["event"] == "ends" and 90 < event["in"] <= 100 and new_events() == []
    record.write_text(json.dumps({"deadline": time.time() + 50}))
    assert 40 < new_events()[0]["in"] <= 50
    notice.write_text(json.dumps({"time": time.time(), "at": time.time() + 120, "why": "EC2 takes this Spot node"}))
    (event,) = new_events()
    assert (event["event"], event["why"]) == ("notice", "EC2 takes this Spot node") and 110 < event["in"] <= 120
    assert new_events() == []
    notice.unlink()
    assert new_events() == [{"event": "notice", "in": None, "why": ""}]


def test_a_line_of_a_job_has_the_money_where_the_nodes_have_a_price() -> None:
    line = {"step": 40, "loss": 3.2144, "lr": 5.9e-4, "tokens_per_s": 8192.0, "time": 1_000_000 + 1800.0}
    assert "$" not in progress(line, 200, 8192)
    priced = {"TRAINYARD_USD_PER_HOUR": "4.8384", "TRAINYARD_BEGAN": "1000000"}
    assert spent(priced, line["time"]) == " $2.42"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in priced.items():
            patch.setenv(name, value)
        assert progress(line, 200, 8192) == "step 40/200 loss 3.214 lr 5.9e-04 8192 tok/s 1 s/step eta 3m $2.42"
