"""bootstrap/limits.py: the hours after which a node ends, and the time without use."""

from __future__ import annotations

import json
import os
import time

import pytest
from bootstrap_runner import BOOTSTRAP
from limited_node import HOUR, MINUTE, PROGRAM, SSH, WORKER, Node


def test_a_node_without_limits_stays_and_its_timer_ends(node: Node) -> None:
    node.booted(ago=1000 * HOUR)
    assert node.tick() == ["systemctl stop --no-block trainyard-limits.timer"]
    assert not node.limits.exists()


def test_a_node_ends_when_its_hours_are_over_whoever_is_logged_in(node: Node) -> None:
    node.process(100, "-bash", SSH)
    node.booted(ago=1.9 * HOUR)
    assert not node.ends(TRAINYARD_MAX_HOURS="2")
    node.booted(ago=2.01 * HOUR)
    assert node.ends(TRAINYARD_MAX_HOURS="2")
    assert node.record()["ends"] == "its hours are over"


def test_everybody_is_told_ten_minutes_before_and_once(node: Node) -> None:
    node.booted(ago=2 * HOUR - 11 * MINUTE)
    assert node.tick(TRAINYARD_MAX_HOURS="2") == []
    node.booted(ago=2 * HOUR - 9 * MINUTE)
    assert node.tick(TRAINYARD_MAX_HOURS="2") == ["wall this node ends in 10 minutes, as its hours are over"]
    assert node.tick(TRAINYARD_MAX_HOURS="2") == []


def test_a_job_has_five_minutes_more_for_its_last_checkpoint(node: Node) -> None:
    node.process(100, "/usr/bin/python3 -I /c/launch supervise /srv/u/runs/smoke-1")
    node.booted(ago=2 * HOUR + 4 * MINUTE)
    assert not node.ends(TRAINYARD_MAX_HOURS="2")
    node.booted(ago=2 * HOUR + 6 * MINUTE)
    assert node.ends(TRAINYARD_MAX_HOURS="2")


@pytest.mark.parametrize("changes", [{"TRAINYARD_MODE": "bake"}, {"TRAINYARD_MODE": "both"}])
def test_nothing_ends_during_a_bake_or_a_bootstrap(node: Node, changes: dict[str, str]) -> None:
    if changes["TRAINYARD_MODE"] == "both":
        node.process(100, "bash /opt/trainyard/bootstrap/bootstrap.sh")
    node.booted(ago=100 * HOUR)
    node.was(idle_since=100 * HOUR)
    assert node.tick(TRAINYARD_MAX_HOURS="1", TRAINYARD_IDLE_MINUTES="1", **changes) in ([], [WARNING])


WARNING = "wall this node ends in 10 minutes, as its hours are over"


# --- the idle limit, on the head ---


def test_an_unused_head_goes_two_minutes_after_the_limit(node: Node) -> None:
    node.was(idle_since=61 * MINUTE)
    assert not node.ends(TRAINYARD_IDLE_MINUTES="60")
    node.was(idle_since=63 * MINUTE)
    assert node.ends(TRAINYARD_IDLE_MINUTES="60")
    assert node.record()["ends"] == "nobody uses it"


def test_the_first_run_begins_the_clock(node: Node) -> None:
    assert not node.ends(TRAINYARD_IDLE_MINUTES="1")
    assert node.record()["idle_since"] > time.time() - 10


USERS = {
    "a rank": ("/opt/trainyard/venv/bin/python -u -m training.train job.toml", {"TRAINYARD_JOB": "smoke-1"}, "job"),
    "a keeper": ("/usr/bin/python3 -I /c/launch keep", {}, "job"),
    "a job that waits for its nodes": ("/usr/bin/python3 -I /c/launch supervise /srv/u/runs/smoke-2", {}, "job"),
    "a shell over SSH": ("-bash", SSH, "login"),
    "what a login has left running": ("python3 prepare.py", SSH, "login"),
    "a console": ("/bin/login -p --", {}, "login"),
    "a session of SSM": ("/usr/bin/ssm-session-worker user-1", {}, "login"),
}


@pytest.mark.parametrize("what", USERS)
def test_who_uses_a_node(node: Node, what: str) -> None:
    command, environment, kind = USERS[what]
    node.process(100, command, environment)
    node.was(idle_since=100 * HOUR)
    assert not node.ends(TRAINYARD_IDLE_MINUTES="60")
    record = node.record()
    assert record["used"] == kind and record["idle_since"] > time.time() - 10


def test_who_only_asks_for_the_record_does_not_use_it(node: Node) -> None:
    node.process(100, "bash -c cat /run/trainyard/limits.json", SSH)
    node.was(idle_since=100 * HOUR)
    assert node.ends(TRAINYARD_IDLE_MINUTES="60")


def test_status_asks_in_words_that_are_recognised() -> None:
    """Or a loop of `fab status` would keep a cluster alive for ever."""
    assert "var/lib/trainyard" in PROGRAM.read_text()
    name = next(line for line in PROGRAM.read_text().splitlines() if line.startswith("NAME = ")).split('"')[1]
    assert f'"status", "{name}"' in (BOOTSTRAP.parent / "fabfile/verbs/status.py").read_text()


def test_a_login_on_a_worker_keeps_the_head(node: Node) -> None:
    node.was(idle_since=100 * HOUR)
    mark = node.root / "run/trainyard/limits.json.node3"
    mark.touch()
    assert not node.ends(TRAINYARD_IDLE_MINUTES="60")
    node.was(idle_since=100 * HOUR)
    os.utime(mark, (0, time.time() - 5 * MINUTE))
    assert node.ends(TRAINYARD_IDLE_MINUTES="60")


# --- the idle limit, on a worker ---


def test_a_worker_within_its_limit_asks_nobody(node: Node) -> None:
    node.was(idle_since=50 * MINUTE)
    assert node.tick(TRAINYARD_IDLE_MINUTES="60", **WORKER) == []


def test_a_worker_goes_with_the_head_and_not_before(node: Node) -> None:
    node.was(idle_since=61 * MINUTE)
    node.head_says(used="job", idle_since=time.time())
    assert not node.ends(TRAINYARD_IDLE_MINUTES="60", **WORKER), "a job on fewer nodes than all"
    node.head_says(idle_since=time.time() - 30 * MINUTE)
    assert not node.ends(TRAINYARD_IDLE_MINUTES="60", **WORKER), "the next job may come"
    node.head_says(idle_since=time.time() - 61 * MINUTE)
    assert node.ends(TRAINYARD_IDLE_MINUTES="60", **WORKER)


def test_a_worker_that_somebody_is_logged_in_to_tells_the_head(node: Node) -> None:
    node.process(100, "-bash", SSH)
    node.was(idle_since=100 * HOUR)
    node.head_says(idle_since=time.time() - 100 * HOUR)
    called = node.tick(TRAINYARD_IDLE_MINUTES="60", **WORKER)
    assert len(called) == 1 and called[0].startswith("runuser -u trainyard -- ssh ")
    assert "node1 sudo touch /run/trainyard/limits.json.node3; cat /run/trainyard/limits.json" in called[0]


def test_a_worker_waits_ten_minutes_for_a_head_that_is_silent(node: Node) -> None:
    node.was(idle_since=61 * MINUTE, head_heard=MINUTE)
    assert not node.ends(TRAINYARD_IDLE_MINUTES="60", **WORKER)
    heard = node.record()["head_heard"]
    assert heard < time.time() - 50, "the clock of its silence goes on"
    node.was(idle_since=71 * MINUTE, head_heard=11 * MINUTE)
    assert node.ends(TRAINYARD_IDLE_MINUTES="60", **WORKER)


def test_a_silence_is_counted_from_the_first_question(node: Node) -> None:
    node.was(idle_since=59 * MINUTE, head_heard=59 * MINUTE)
    node.tick(TRAINYARD_IDLE_MINUTES="60", **WORKER)
    assert node.record()["head_heard"] > time.time() - 10


def test_the_hours_count_from_the_first_boot_of_this_machine(node: Node) -> None:
    first = node.state / "first-boot.json"
    first.unlink()
    node.tick(TRAINYARD_MAX_HOURS="1")
    assert abs(json.loads(first.read_text())["time"] - time.time()) < 20
    first.write_text(json.dumps({"time": 5, "instance": "i"}))
    assert node.ends(TRAINYARD_MAX_HOURS="1"), "kept over reboots"
    (node.root / "etc/machine-id").write_text("another\n")
    node.limits.unlink()
    assert not node.ends(TRAINYARD_MAX_HOURS="1"), "a copy of the disk is another node"
    uuid = node.root / "sys/class/dmi/id/product_uuid"
    uuid.parent.mkdir(parents=True)
    uuid.write_text("ec2-1\n")
    first.write_text(json.dumps({"time": 5, "instance": "another"}))
    node.limits.unlink()
    assert not node.ends(TRAINYARD_MAX_HOURS="1"), "in another virtual machine as well"
    assert json.loads(first.read_text())["instance"] == "ec2-1 another"
