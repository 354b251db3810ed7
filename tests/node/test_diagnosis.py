"""Who is to blame for a job's end, and when a job is stopped because a node ends."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.job.diagnosis import GRACE, MPIRUN, START, Diagnosis, Outcome
from node.job.expiry import Expiry

NODES = ["node1", "node2", "node3"]
TIMEOUT = 10.0


class Story:
    """An attempt of three ranks, told second by second."""

    def __init__(self) -> None:
        self.watch = Diagnosis(list(NODES), TIMEOUT, 100.0)
        self.now = 100.0
        for number, node in enumerate(NODES):
            self.tell(node, event="rank", rank=number, state="running")

    def tell(self, node: str, **event: Any) -> None:
        self.watch.update(node, event, self.now)

    def steps(self, *steps: int, age: float = 0.0) -> None:
        for number, step in enumerate(steps):
            self.tell(NODES[number], event="step", rank=number, step=step, phase="train", age=age)

    def ended(self, number: int, code: int, last: str = "") -> None:
        self.tell(NODES[number], event="rank", rank=number, state="exited", code=code, last=last)

    def beat(self, *nodes: str) -> None:
        for node in nodes or NODES:
            self.tell(node, event="beat")

    def until_verdict(self, seconds: float, beats: Callable[[], None] | None = None) -> Outcome | None:
        end = self.now + seconds
        while self.now <= end:
            verdict = self.watch.verdict(self.now)
            if verdict:
                return verdict
            self.now += 0.1
            (beats or self.beat)()
        return None


def test_without_a_launchers_program_the_ranks_ends_are_all_there_is_to_wait_for() -> None:
    story = Story()
    story.watch.program = ""
    for number in range(3):
        story.ended(number, 0, "done")
    assert story.watch.verdict(story.now) == Outcome(0, "done"), "at once"
    story = Story()
    story.watch.program = ""
    for number, node in enumerate(NODES):
        story.tell(node, event="rank", rank=number, state="lost")
    verdict = story.watch.verdict(story.now)
    assert verdict == Outcome(1, "rank 0 on node1 is gone, with the program that watched it")


def test_all_ranks_done_is_a_good_end_also_when_mpirun_does_not_go() -> None:
    story = Story()
    for number in range(3):
        story.ended(number, 0, "done")
    assert story.watch.verdict(story.now) is None  # mpirun has a moment
    assert story.until_verdict(15) == Outcome(0, "done")
    story = Story()
    for number in range(3):
        story.ended(number, 0, "done")
    story.watch.mpirun_ended(0, story.now)
    assert story.watch.verdict(story.now) == Outcome(0, "done")


def test_the_killed_rank_is_to_blame_and_not_those_that_complain_first() -> None:
    story = Story()
    story.steps(5, 5, 5)
    story.ended(0, 1, "rank 1 (node2) does not answer")
    story.ended(2, 1, "rank 1 (node2) does not answer")
    story.now += 1
    story.ended(1, -signal.SIGKILL)
    assert story.until_verdict(GRACE + 1) == Outcome(1, "rank 1 on node2 was killed by SIGKILL")


def test_what_mpirun_kills_because_of_a_rank_is_not_to_blame() -> None:
    story = Story()
    story.tell("node1", event="rank", rank=0, state="lost")
    story.ended(2, -signal.SIGSEGV)
    assert story.until_verdict(2) == Outcome(1, "rank 2 on node3 was killed by SIGSEGV", by_program=True)


@pytest.mark.parametrize(
    ("code", "last", "own"),
    [
        (2, "data.path = /data: no such folder", True),
        (3, "step 7: the loss is nan; a lower train.lr may help", True),
        (3, "rank 1 (node2) failed: CUDA out of memory", True),
        (-signal.SIGSEGV, "", True),
        (1, "rank 0 (node1) does not answer (no message for 25 s)", False),
        (1, "rank 1 (node2): checkpoints/step-000040: the disk is full", False),
        (-signal.SIGKILL, "", False),
        (-signal.SIGTERM, "", False),
        (-signal.SIGABRT, "NCCL watchdog: a collective timed out", False),
    ],
)
def test_which_ends_are_the_programs_own(code: int, last: str, own: bool) -> None:
    """Those would come again. All others are resumed in a managed job."""
    story = Story()
    story.ended(1, code, last)
    story.ended(0, 1, "rank 1 (node2) does not answer")
    verdict = story.until_verdict(GRACE + 1)
    assert verdict is not None and verdict.by_program is own


def test_silence_of_a_node_or_of_a_rank_is_not_the_programs_own() -> None:
    story = Story()
    story.steps(5, 5, 5)
    cut_off = story.until_verdict(60, lambda: None)
    story = Story()
    story.steps(5, 5, 5)
    silent = story.until_verdict(60)
    assert cut_off is not None and "is cut off: no word for" in cut_off.reason and not cut_off.by_program
    assert silent is not None and "is silent for" in silent.reason and not silent.by_program


def test_a_killed_mpirun_is_to_blame_also_if_its_end_is_heard_of_after_that_of_the_ranks() -> None:
    for heard, expected in ((True, "mpirun was killed by SIGKILL"), (False, "rank 0 on node1 is gone, with the ")):
        story = Story()
        for number, node in enumerate(NODES):
            story.tell(node, event="rank", rank=number, state="lost")
        assert story.watch.verdict(story.now) is None
        story.now += 0.3
        if heard:
            story.watch.mpirun_ended(-signal.SIGKILL, story.now)
        verdict = story.until_verdict(GRACE + 1)
        assert verdict is not None and verdict.reason.startswith(expected)


def test_a_rank_that_fails_is_named_with_its_last_word() -> None:
    story = Story()
    story.ended(2, 1, "the disk is full (0.00 GB left)")
    expected = Outcome(1, "rank 2 on node3 ended with exit code 1: the disk is full (0.00 GB left)")
    assert story.until_verdict(2) == expected


def test_what_all_ranks_have_agreed_on_is_the_reason() -> None:
    story = Story()
    for number in range(3):
        story.ended(number, 1, "rank 1 (node2): checkpoints/step-000040: the disk is full")
    assert story.watch.verdict(story.now) == Outcome(1, "rank 1 (node2): checkpoints/step-000040: the disk is full")


def test_bad_input_is_exit_code_2() -> None:
    story = Story()
    for number in range(3):
        story.ended(number, 2, "data.path = /d: no such folder")
    verdict = story.watch.verdict(story.now)
    assert verdict and verdict.code == 2 and "no such folder" in verdict.reason


def test_a_stopped_rank_is_named() -> None:
    story = Story()
    story.tell("node2", event="stopped", rank=1)
    assert story.until_verdict(2) == Outcome(1, "rank 1 on node2 is stopped (SIGSTOP, or a debugger)")


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
    assert verdict == Outcome(1, "node3 (rank 2) is cut off: no word for 6 s", cut_off="node3")


def test_mpirun_killed_or_failed_is_named() -> None:
    story = Story()
    story.watch.mpirun_ended(-signal.SIGKILL, story.now)
    assert story.until_verdict(2) == Outcome(1, "mpirun was killed by SIGKILL")
    story = Story()
    story.watch.noise = "node2: unknown host"
    story.watch.mpirun_ended(1, story.now)
    assert story.until_verdict(2) == Outcome(1, "mpirun ended with exit code 1: node2: unknown host")


def test_a_launcher_that_ends_well_without_its_ranks_is_a_failure() -> None:
    """srun says 0 where it could not open its output; the ranks' own ends are what counts."""
    story = Story()
    story.watch.program = "srun"
    story.ended(0, 0, "done")
    story.watch.mpirun_ended(0, story.now)
    assert story.until_verdict(MPIRUN - 0.5) is None, "their ends may be heard of later"
    assert story.until_verdict(1) == Outcome(1, "srun ended before the ranks did")
    for number in (1, 2):
        story.ended(number, 0, "done")
    assert story.watch.verdict(story.now) == Outcome(0, "done"), "and not what it says of itself"


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


def test_a_job_is_warned_once_and_stopped_before_the_first_of_its_nodes_ends() -> None:
    lines: list[str] = []
    expiry = Expiry()
    assert expiry.asked(0.0, lines.append) == "", "nobody has limits"
    expiry.known("node1", 10_000.0)
    expiry.known("node2", 2_000.0)
    assert expiry.asked(1_000.0, lines.append) == "" and not lines
    assert [expiry.asked(now, lines.append) for now in (1_450.0, 1_500.0, 1_699.0)] == [""] * 3
    assert len(lines) == 1 and lines[0].startswith("warning: node2 ends in 9 minutes, as its hours are over")
    assert expiry.asked(1_701.0, lines.append) == "stop"
    expiry.known("node2", 9_000.0)  # somebody has given it more time
    assert expiry.asked(1_701.0, lines.append) == "" and len(lines) == 1


def test_a_job_is_stopped_at_once_for_a_node_that_its_cloud_takes_in_two_minutes() -> None:
    lines: list[str] = []
    expiry = Expiry()
    expiry.known("node1", 100_000.0)
    expiry.known("node2", 1_120.0, "EC2 takes this Spot node at 12:03:05Z")
    assert expiry.asked(1_000.0, lines.append) == expiry.asked(1_001.0, lines.append) == "stop"
    assert lines == [
        "warning: node2: EC2 takes this Spot node at 12:03:05Z; before that the job is stopped with a checkpoint"
    ]
    assert expiry.reason == "node2: EC2 takes this Spot node at 12:03:05Z" and expiry.taken == {"node2"}
    assert (expiry.left(1_001.0), expiry.left(1_121.0), Expiry().left(1_001.0)) == (119.0, math.inf, math.inf)


def test_a_reboot_that_azure_announces_early_stops_the_job_five_minutes_before_and_not_at_all_if_withdrawn() -> None:
    expiry = Expiry()
    expiry.known("node2", 1_900.0, "Azure reboots this node at 12:15:00Z")
    assert expiry.asked(1_000.0, print) == "" and expiry.taken == {"node2"}
    assert expiry.asked(1_601.0, print) == "stop"
    expiry.withdraw("node2")
    assert expiry.asked(1_602.0, print) == "" and not expiry.taken
