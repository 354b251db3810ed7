"""Jobs: who is to blame for a job's end, numbers and states, the wrapper around a rank, the log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabfile.launchers import nodes_to_text
from infra.inventory import Node
from node.job import cleanup, files, job_table, keeper, log
from node.job.diagnosis import GRACE, START, Verdict, Watch
from node.job.expiry import Expiry
from node.job.spec import KeeperSpec
from training.metrics import progress, spent

ROOT = Path(__file__).resolve().parents[2]
NODES = ["node1", "node2", "node3"]
TIMEOUT = 10.0

# --- the verdict ---


class Story:
    """An attempt of three ranks, told second by second."""

    def __init__(self) -> None:
        self.watch = Watch(list(NODES), TIMEOUT, 100.0)
        self.now = 100.0
        for number, node in enumerate(NODES):
            self.tell(node, event="rank", rank=number, state="running")

    def tell(self, node: str, **event: Any) -> None:
        self.watch.told(node, event, self.now)

    def steps(self, *steps: int, age: float = 0.0) -> None:
        for number, step in enumerate(steps):
            self.tell(NODES[number], event="step", rank=number, step=step, phase="train", age=age)

    def ended(self, number: int, code: int, last: str = "") -> None:
        self.tell(NODES[number], event="rank", rank=number, state="exited", code=code, last=last)

    def beat(self, *nodes: str) -> None:
        for node in nodes or NODES:
            self.tell(node, event="beat")

    def until_verdict(self, seconds: float, beats: Callable[[], None] | None = None) -> Verdict | None:
        end = self.now + seconds
        while self.now <= end:
            verdict = self.watch.verdict(self.now)
            if verdict:
                return verdict
            self.now += 0.1
            (beats or self.beat)()
        return None


def test_all_ranks_done_is_a_good_end_also_when_mpirun_does_not_go() -> None:
    story = Story()
    for number in range(3):
        story.ended(number, 0, "done")
    assert story.watch.verdict(story.now) is None  # mpirun has a moment
    assert story.until_verdict(15) == Verdict(0, "done")
    story = Story()
    for number in range(3):
        story.ended(number, 0, "done")
    story.watch.mpirun_ended(0, story.now)
    assert story.watch.verdict(story.now) == Verdict(0, "done")


def test_the_killed_rank_is_to_blame_and_not_those_that_complain_first() -> None:
    story = Story()
    story.steps(5, 5, 5)
    story.ended(0, 1, "rank 1 (node2) does not answer")
    story.ended(2, 1, "rank 1 (node2) does not answer")
    story.now += 1
    story.ended(1, -signal.SIGKILL)
    assert story.until_verdict(GRACE + 1) == Verdict(1, "rank 1 on node2 was killed by SIGKILL")


def test_what_mpirun_kills_because_of_a_rank_is_not_to_blame() -> None:
    story = Story()
    story.tell("node1", event="rank", rank=0, state="lost")
    story.ended(2, -signal.SIGSEGV)
    assert story.until_verdict(2) == Verdict(1, "rank 2 on node3 was killed by SIGSEGV")


def test_a_rank_that_fails_is_named_with_its_last_word() -> None:
    story = Story()
    story.ended(2, 1, "the disk is full (0.00 GB left)")
    expected = Verdict(1, "rank 2 on node3 ended with exit code 1: the disk is full (0.00 GB left)")
    assert story.until_verdict(2) == expected


def test_what_all_ranks_have_agreed_on_is_the_reason() -> None:
    story = Story()
    for number in range(3):
        story.ended(number, 1, "rank 1 (node2): checkpoints/step-000040: the disk is full")
    assert story.watch.verdict(story.now) == Verdict(1, "rank 1 (node2): checkpoints/step-000040: the disk is full")


def test_bad_input_is_exit_code_2() -> None:
    story = Story()
    for number in range(3):
        story.ended(number, 2, "data.path = /d: no such folder")
    verdict = story.watch.verdict(story.now)
    assert verdict and verdict.code == 2 and "no such folder" in verdict.reason


def test_a_stopped_rank_is_named() -> None:
    story = Story()
    story.tell("node2", event="stopped", rank=1)
    assert story.until_verdict(2) == Verdict(1, "rank 1 on node2 is stopped (SIGSTOP, or a debugger)")


def test_a_node_without_a_word_is_cut_off_and_the_complaints_of_others_do_not_count() -> None:
    story = Story()
    story.now += 3
    story.beat("node1", "node2")
    story.ended(0, 1, "connection reset")
    story.watch.gone = {}
    verdict = story.until_verdict(10, lambda: story.beat("node1", "node2"))
    assert verdict and verdict.reason.startswith("rank 0 on node1")  # it said so before the silence was long enough
    story = Story()
    verdict = story.until_verdict(10, lambda: story.beat("node1", "node2"))
    assert verdict == Verdict(1, "node3 (rank 2) is cut off: no word for 6 s")


def test_mpirun_killed_or_failed_is_named() -> None:
    story = Story()
    story.watch.mpirun_ended(-signal.SIGKILL, story.now)
    assert story.until_verdict(2) == Verdict(1, "mpirun was killed by SIGKILL")
    story = Story()
    story.watch.noise = "node2: unknown host"
    story.watch.mpirun_ended(1, story.now)
    assert story.until_verdict(2) == Verdict(1, "mpirun ended with exit code 1: node2: unknown host")


def test_the_rank_that_is_furthest_behind_is_the_silent_one() -> None:
    story = Story()
    story.steps(7, 6, 7)
    verdict = story.until_verdict(TIMEOUT + 10)
    assert verdict and verdict.reason.startswith("rank 1 on node2 is silent for 1") and "step 6" in verdict.reason
    assert story.now < 100 + TIMEOUT + 6


def test_loading_may_take_longer_than_a_step() -> None:
    story = Story()
    assert story.until_verdict(START - 5) is None
    verdict = story.until_verdict(10)
    assert verdict and "before its first step" in verdict.reason


@given(st.lists(st.sampled_from(["beat", "step", "ok", "fail", "kill", "stop", "lost", "cut"]), max_size=30), st.data())
def test_every_story_with_a_failure_ends_with_one(words: list[str], data: st.DataObject) -> None:
    """Whatever the order: a bad sign ends the attempt, non-zero, within the grace; without one it does not fail."""
    story, bad, over = Story(), False, set()
    for word in words:
        number = data.draw(st.integers(0, 2))
        node = NODES[number]
        if word in ("ok", "fail", "kill", "lost"):
            if number in over:
                continue
            over.add(number)
        if word == "step":
            story.steps(1, 1, 1)
        elif word in ("ok", "fail", "kill"):
            story.ended(number, {"ok": 0, "fail": 1, "kill": -9}[word])
        elif word == "lost":
            story.tell(node, event="rank", rank=number, state="lost")
        elif word == "stop":
            story.tell(node, event="stopped", rank=number)
        elif word == "cut":
            story.watch.cut_off(node, "gone", story.now)
        bad = bad or word in ("fail", "kill", "lost", "stop", "cut")
    verdict = story.until_verdict(GRACE + 0.5)
    assert (verdict is not None and verdict.code != 0) == bad
    if verdict and verdict.code:
        assert "node" in verdict.reason


# --- numbers and states ---


def test_numbers_count_up_over_all_names_and_nobody_gets_the_same(tmp_path: Path) -> None:
    (tmp_path / "demo-7").mkdir()
    taken: list[str] = []
    threads = [threading.Thread(target=lambda: taken.append(job_table.take(tmp_path, "smoke"))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == 20 and min(job_table.number_of(job) for job in taken) == 8


def record(run_dir: Path, **changes: Any) -> dict[str, Any]:
    run_dir.mkdir(parents=True, exist_ok=True)
    state = {"id": run_dir.name, "state": "RUNNING", "reason": "", "nodes": NODES, "created": 0.0, "queued": False}
    files.write(run_dir / "state.json", {**state, **changes})
    return {**state, **changes}


@pytest.fixture
def active(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Jobs whose service runs."""
    names: set[str] = set()
    monkeypatch.setattr(job_table, "is_active", names.__contains__)
    return names


def test_a_job_whose_launcher_is_gone_has_failed_and_is_in_nobodys_way(tmp_path: Path, active: set[str]) -> None:
    record(tmp_path / "a-1")
    assert job_table.state_of(tmp_path / "a-1")["state"] == "FAILED"
    assert job_table.in_the_way(tmp_path, set(NODES)) == []
    active.add("a-1")
    assert [state["id"] for state in job_table.in_the_way(tmp_path, {"node3", "node9"})] == ["a-1"]
    assert job_table.in_the_way(tmp_path, {"node9"}) == []


def test_who_queues_waits_for_those_before_it_and_not_for_those_after_it(tmp_path: Path, active: set[str]) -> None:
    for number in (2, 3, 10):
        record(tmp_path / f"a-{number}", state="PENDING", queued=True)
        active.add(f"a-{number}")
    assert [state["id"] for state in job_table.in_the_way(tmp_path, set(NODES), "a-3")] == ["a-2"]
    assert [state["id"] for state in job_table.every(tmp_path)] == ["a-2", "a-3", "a-10"]


def test_a_record_is_written_when_the_full_disk_has_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, full = os.fsync, [True, True]

    def sync(file: int) -> None:
        if full and full.pop():
            raise OSError(28, "No space left on device")
        real(file)

    monkeypatch.setattr(os, "fsync", sync)
    files.write(tmp_path / "state.json", {"state": "FAILED"})
    assert files.read(tmp_path / "state.json") == {"state": "FAILED"}
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


# --- a rank and its keeper ---


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


def until(what: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_numbers_of_jobs_in_the_bucket_are_taken(tmp_path: Path) -> None:
    """A bucket outlives its cluster: the next cluster's jobs must not meet the ones before under their names."""
    assert job_table.take(tmp_path, "demo", ["demo-7", "smoke-9", "notes"]) == "demo-10"
    assert job_table.take(tmp_path, "demo") == "demo-11"


def test_the_wrapper_keeps_lines_and_how_the_rank_ended(tmp_path: Path) -> None:
    program = "import sys; print('a\\rb'); print('error: no room'); print('half', end=''); sys.exit(3)"
    wrapper = wrapped(tmp_path, program)
    state = until(lambda: ended(tmp_path))
    assert (state["code"], state["last"], state["node"]) == (3, "no room", "node1")
    lines = [line.split(" ", 1)[1] for line in (tmp_path / "nodes/node1/rank-0.log").read_text().splitlines()]
    assert lines[1:] == ["b", "error: no room", "half"] and lines[0].startswith("on node1: 1 threads")
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
    until(lambda: keeper._state(pid) == "")
    until(lambda: cleanup.processes(job) == [])


def test_the_keeper_tells_lines_steps_a_stop_and_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "STOPPED_SECONDS", 0.2)
    program = (
        "import json,os,signal,sys,time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('hello')\n"
        "beat = {'step': 4, 'time': time.time(), 'phase': 'train', 'pid': os.getpid()}\n"
        f"open('{tmp_path}/heartbeat/rank-0.json', 'w').write(json.dumps(beat)); time.sleep(60)"
    )
    (tmp_path / "heartbeat").mkdir()
    wrapper = wrapped(tmp_path, program)
    path = tmp_path / "nodes/node1/rank-0.json"
    until(path.exists)
    rank, events = keeper.Rank(0, path, tmp_path), []

    def told(kind: str) -> Any:
        events.extend(rank.news())
        return [event for event in events if event["event"] == kind]

    until(lambda: "hello" in [event["text"] for event in told("log")])
    step = until(rank.step)
    assert (step["step"], step["phase"]) == (4, "train") and step["age"] < 30
    pid = files.read(path)["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert until(lambda: told("stopped")) == [{"event": "stopped", "rank": 0}]
    os.kill(pid, signal.SIGCONT)
    rank.term()
    assert until(lambda: [event for event in told("rank") if event["state"] == "exited"])[0]["code"] == 0
    assert wrapper.wait(10) == 0
    wrapper.communicate()


def test_the_keeper_tells_when_its_node_ends_and_that_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "limits.json"
    notice = tmp_path / "notice.json"
    monkeypatch.setattr(files, "LIMITS", record)
    monkeypatch.setattr(files, "NOTICE", notice)
    holder = keeper.Keeper(KeeperSpec(id="job-1", node="node1", run_dir=str(tmp_path), job="", lease=6))

    def told() -> list[dict[str, Any]]:
        holder._look_at_limits()
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert told() == [], "a node without limits"
    record.write_text(json.dumps({"deadline": time.time() + 100}))
    (event,) = told()
    assert event["event"] == "ends" and 90 < event["in"] <= 100 and told() == []
    record.write_text(json.dumps({"deadline": time.time() + 50}))
    assert 40 < told()[0]["in"] <= 50
    notice.write_text(json.dumps({"time": time.time(), "at": time.time() + 120, "why": "EC2 takes this Spot node"}))
    (event,) = told()
    assert (event["event"], event["why"]) == ("notice", "EC2 takes this Spot node") and 110 < event["in"] <= 120
    assert told() == []
    notice.unlink()
    assert told() == [{"event": "notice", "in": None, "why": ""}]


def test_a_job_is_warned_once_and_stopped_before_the_first_of_its_nodes_ends() -> None:
    said: list[str] = []
    expiry = Expiry()
    assert expiry.asked(0.0, said.append) == "", "nobody has limits"
    expiry.told("node1", 10_000.0)
    expiry.told("node2", 2_000.0)
    assert expiry.asked(1_000.0, said.append) == "" and not said
    assert [expiry.asked(now, said.append) for now in (1_450.0, 1_500.0, 1_699.0)] == [""] * 3
    assert len(said) == 1 and said[0].startswith("warning: node2 ends in 9 minutes, as its hours are over")
    assert expiry.asked(1_701.0, said.append) == "stop"
    expiry.told("node2", 9_000.0)  # somebody has given it more time
    assert expiry.asked(1_701.0, said.append) == "" and len(said) == 1


def test_a_job_is_stopped_at_once_for_a_node_that_its_cloud_takes_in_two_minutes() -> None:
    said: list[str] = []
    expiry = Expiry()
    expiry.told("node1", 100_000.0)
    expiry.noticed("node2", 1_120.0, "EC2 takes this Spot node at 12:03:05Z")
    assert expiry.asked(1_000.0, said.append) == expiry.asked(1_001.0, said.append) == "stop"
    assert said == [
        "warning: node2: EC2 takes this Spot node at 12:03:05Z; before that the job is stopped with a checkpoint"
    ]
    assert expiry.reason == "node2: EC2 takes this Spot node at 12:03:05Z" and expiry.taken == {"node2"}


def test_a_reboot_that_azure_announces_early_stops_the_job_five_minutes_before_and_not_at_all_if_withdrawn() -> None:
    expiry = Expiry()
    expiry.noticed("node2", 1_900.0, "Azure reboots this node at 12:15:00Z")
    assert expiry.asked(1_000.0, print) == "" and expiry.taken == {"node2"}
    assert expiry.asked(1_601.0, print) == "stop"
    expiry.withdrawn("node2")
    assert expiry.asked(1_602.0, print) == "" and not expiry.taken


# --- the log ---


def test_a_log_is_read_back_by_offset_rank_and_time_without_half_a_line(tmp_path: Path) -> None:
    written = log.Log(tmp_path / "log", "node1")
    for when, rank in ((100.0, "0"), (200.0, "1"), (300.0, "0")):
        written.add(when, "node2", rank, f"line {when:.0f}")
    lines, offset = log.read(tmp_path / "log", 0, log.Wanted("", 0.0))
    assert [line[3] for line in lines] == ["line 100", "line 200", "line 300"]
    with (tmp_path / "log").open("a") as file:
        file.write("400.000 node3 2 hal")
    assert log.read(tmp_path / "log", offset, log.Wanted("", 0.0)) == ([], offset)
    with (tmp_path / "log").open("a") as file:
        file.write("f\n")
    assert log.read(tmp_path / "log", offset, log.Wanted("", 0.0))[0] == [["400.000", "node3", "2", "half"]]
    assert [line[3] for line in log.read(tmp_path / "log", 0, log.Wanted("0", 150.0))[0]] == ["line 300"]


def test_lines_that_a_full_disk_refuses_are_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, real, full = log.Log(tmp_path / "log", "node1"), os.write, [True]

    def write(file: int, data: bytes) -> int:
        if full:
            full.pop()
            raise OSError(28, "No space left on device")
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
    written.say("first")
    assert (tmp_path / "log").read_text() == ""
    written.say("second")
    assert [line.split(" ", 3)[3] for line in (tmp_path / "log").read_text().splitlines()] == ["first", "second"]


def test_a_line_of_a_job_has_the_money_where_the_nodes_have_a_price() -> None:
    line = {"step": 40, "loss": 3.2144, "lr": 5.9e-4, "tokens_per_s": 8192.0, "time": 1_000_000 + 1800.0}
    assert "$" not in progress(line, 200, 8192)
    priced = {"TRAINYARD_USD_PER_HOUR": "4.8384", "TRAINYARD_BEGAN": "1000000"}
    assert spent(priced, line["time"]) == " $2.42"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in priced.items():
            patch.setenv(name, value)
        assert progress(line, 200, 8192) == "step 40/200 loss 3.214 lr 5.9e-04 8192 tok/s 1 s/step eta 3m $2.42"


def test_a_systemd_that_does_not_answer_for_a_moment_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is updated it starts anew; a job that is followed then is neither over nor lost sight of."""
    program = tmp_path / "systemctl"
    program.write_text(f"#!/bin/sh\n[ -e {tmp_path}/again ] && echo active && exit\n>{tmp_path}/again; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert job_table.is_active("job-1")
    program.write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setattr(job_table, "_SYSTEMD_SECONDS", 0.1)
    with pytest.raises(subprocess.CalledProcessError):
        job_table.is_active("job-1")
