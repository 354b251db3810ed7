"""A program that writes faster than its lines are taken: nobody is kept from anything else by them, none is lost."""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from polling import until

from fabfile.launchers import Launch
from infra.inventory import Node
from node.job import attempt as attempts
from node.job import keeper, keeper_connection, log_reader
from node.job.keeper_connection import NodeEvent, PipeLink
from node.job.log import Log
from node.job.log_reader import LogReader
from node.job.rank_wrapper import RankLog
from node.job.spec import KeeperSpec

SPEC = KeeperSpec(id="job-1", node="node1", run_dir="/nowhere", job="")


def test_the_head_beats_between_the_lines(tmp_path: Path) -> None:
    """The keepers end their ranks when the head has not beaten for LEASE seconds."""
    launch = Launch(id="job-1", nodes=(Node(name="node1", private_ip="10.0.0.1"),), run_dir=str(tmp_path), code="/code")
    nothing: Any = None
    attempt = attempts.Attempt("mpirun", nothing, launch, 10.0, Log(tmp_path / "log", "node1"), lambda: "", 0.0)
    for number in range(2 * keeper_connection.AT_ONCE + 5):
        attempt._events.put(("node1", {"event": "log", "rank": 0, "time": 1.0, "text": str(number)}))
    assert [len(attempt._heard()) for _ in range(3)] == [keeper_connection.AT_ONCE, keeper_connection.AT_ONCE, 5]


def test_a_keeper_waits_while_the_head_has_much_to_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_connection, "WAITING", 10)
    events: queue.SimpleQueue[NodeEvent] = queue.SimpleQueue()
    said = f"import json\nfor number in range(100): print({json.dumps(json.dumps({'event': 'beat'}))})"
    link = PipeLink(SPEC, [sys.executable, "-c", said], events)
    time.sleep(1.0)
    assert 10 <= events.qsize() <= 12
    taken = [events.get(timeout=10) for _ in range(101)]
    assert taken[-1] == ("node1", None), "all come, and the end comes last"
    link.cut()


def test_a_long_log_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "READ", 1000)
    path = tmp_path / "rank-0.log"
    path.write_text("".join(f"100.000 line {number:04d}\n" for number in range(200)))
    lines = LogReader(path)
    seen = [text for _, text in lines.new()]
    assert lines.is_behind and 40 < len(seen) < 60
    path.replace(path.with_suffix(".log.1"))
    path.write_text("101.000 the last\n")
    while lines.is_behind:
        seen += [text for _, text in lines.new()]
    assert seen == [*(f"line {number:04d}" for number in range(200)), "the last"]


@pytest.mark.parametrize("seconds", [60.0, 0.0])
def test_a_jobs_end_waits_for_the_last_lines_but_not_for_ever(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log_reader, "READ", 1000)
    monkeypatch.setattr(keeper, "LAST_LINES", seconds)
    holder = keeper.Keeper(KeeperSpec(id=f"test-{tmp_path.name}-1", node="node1", run_dir=str(tmp_path), job=""))
    holder.folder.mkdir(parents=True)
    exited = {"rank": 0, "state": "exited", "code": 0, "pid": 1, "wrapper": 1}
    (holder.folder / "rank-0.json").write_text(json.dumps(exited))
    (holder.folder / "rank-0.log").write_text("".join(f"100.000 line {number:04d}\n" for number in range(200)))
    monkeypatch.setattr(holder, "_kill", lambda: None)
    holder._end()
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    last, clean = [event for event in events if event["event"] == "log"][-1], events[-1]
    assert clean == {"event": "clean", "alive": []}
    if seconds:
        assert last["text"] == "line 0199"
    else:
        assert last["text"] == f"what it wrote after this is on node1 only: {holder.folder}/rank-0.log"


def test_a_program_waits_rather_than_that_lines_are_lost(tmp_path: Path) -> None:
    path, count = tmp_path / "rank-0.log", 300
    wrapper, lines = RankLog(path, file_bytes=500), LogReader(path)
    writing = threading.Thread(target=lambda: [wrapper.line(f"line {number}") for number in range(count)], daemon=True)
    writing.start()
    time.sleep(0.3)
    assert writing.is_alive(), "two files are full, and nobody has read one"
    seen: list[str] = []
    until(lambda: seen.extend(text for _, text in lines.new()) or not writing.is_alive())
    seen += [text for _, text in lines.new()]
    assert seen == [f"line {number}" for number in range(count)]
