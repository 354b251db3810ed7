"""What is printed of a boot, event by event, and the program that follows it on a node."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from boot_records import FAILED, READY, event, put, state

from fabfile.remote.boot import NodeBoot, software
from infra.inventory import Node

FOLLOW = Path(__file__).parents[2] / "node" / "boot.sh"


@pytest.fixture
def boot() -> NodeBoot:
    return NodeBoot(Node(name="node1", private_ip="10.0.0.1"), began=100.0)


def test_a_boot_is_told_event_by_event(boot: NodeBoot) -> None:
    lines = [
        *boot.unreached("node1 (10.0.0.1:22): Connection refused", 100.1),
        *boot.answers("", 101.4),
        *boot.line('step {"time": 1, "step": "torch", "state": "start"}', 102.0),
        *boot.tick(103.0),
        *boot.tick(106.0),
        *boot.tick(107.0),
        *boot.line('step {"time": 9, "step": "torch", "state": "done", "seconds": 12.345}', 114.3),
        *boot.line("ready " + json.dumps(READY), 115.0),
    ]
    assert lines == [
        "ssh answers (1.4 s)",
        "step torch …",
        "step torch … 12.3 s",
        "ready (15.0 s): torch 2.13.0, 2 cores, no AMX",
    ]
    assert boot.state == "ready"


def test_a_lost_connection_is_said_once(boot: NodeBoot) -> None:
    boot.answers("", 101.0)
    assert boot.unreached("gone", 102.0) == ["connection lost, trying again: gone"]
    assert boot.unreached("gone", 103.0) == []
    assert boot.seen == "gone"


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("ready {half", "not JSON"),
        ("ready []", "not an object"),
        ("unreadable /var/lib/trainyard/ready.json", "cannot be read"),
        ('step {"step": "torch", "state": "start"}', "step torch has begun"),
    ],
)
def test_the_last_thing_seen_is_remembered(boot: NodeBoot, line: str, seen: str) -> None:
    boot.answers("", 101.0)
    boot.line(line, 102.0)
    assert boot.state == "booting"
    assert seen in boot.seen


@pytest.mark.parametrize(
    ("change", "reason"), [({"mode": "bake"}, "has baked an image"), ({"node": "node7"}, "the record is of 'node7'")]
)
def test_a_record_that_is_not_this_nodes_is_a_failure(boot: NodeBoot, change: dict[str, str], reason: str) -> None:
    boot.answers("", 101.0)
    assert boot.line("ready " + json.dumps({**READY, **change}), 102.0) == []
    assert boot.state == "failed"
    assert reason in boot.record["reason"]


def test_software_in_a_few_words() -> None:
    assert software(READY) == "torch 2.13.0, 2 cores, no AMX"
    assert software({"versions": {"torch": "2.8.0"}, "cpu": {"cores": 1, "amx": True}}) == "torch 2.8.0, 1 core, AMX"


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    state(tmp_path)
    (tmp_path / "opt/trainyard/bootstrap").mkdir(parents=True)
    process = subprocess.Popen(
        ["bash", "--norc", FOLLOW],
        env={**os.environ, "TRAINYARD_PREFIX": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.wait()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def test_the_follower_tells_steps_as_they_come_and_ends_with_the_record(
    follower: subprocess.Popen[str], tmp_path: Path
) -> None:
    event(tmp_path, "names", "start")
    assert json.loads(line_of(follower).removeprefix("step "))["step"] == "names"
    with (state(tmp_path) / "progress.jsonl").open("a") as file:
        file.write('{"step": "half')  # a line that is being written is not told
        file.flush()
        time.sleep(0.5)
        file.write('", "state": "done"}\n')
    assert line_of(follower) == 'step {"step": "half", "state": "done"}'
    (state(tmp_path) / "progress.jsonl").unlink()  # the bootstrap begins again
    time.sleep(0.5)
    event(tmp_path, "again", "start")
    assert "again" in line_of(follower)
    event(tmp_path, "last", "done", 1.0)
    put(state(tmp_path) / "ready.json", READY)
    assert "last" in line_of(follower)
    word, _, record = line_of(follower).partition(" ")
    assert (word, json.loads(record)) == ("ready", READY)
    assert follower.wait(timeout=20) == 0


def test_the_follower_ends_with_its_reader(follower: subprocess.Popen[str]) -> None:
    assert follower.stdin is not None
    follower.stdin.close()
    assert follower.wait(timeout=20) == 0


def follow_once(root: Path) -> str:
    env = {**os.environ, "TRAINYARD_PREFIX": str(root)}
    return subprocess.run(["bash", FOLLOW], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout


def test_a_record_from_before_a_reboot_says_nothing_about_now(tmp_path: Path) -> None:
    put(state(tmp_path) / "ready.json", READY)
    event(tmp_path, "old", "start")
    assert follow_once(tmp_path).startswith("ready ")
    booted = tmp_path / "run/systemd/inaccessible/reg"
    booted.parent.mkdir(parents=True)
    time.sleep(0.02)
    booted.touch()
    assert follow_once(tmp_path) == ""
    time.sleep(0.02)
    put(state(tmp_path) / "failed.json", FAILED)
    assert follow_once(tmp_path).startswith("failed ")
