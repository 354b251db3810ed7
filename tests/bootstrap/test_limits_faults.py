"""bootstrap/limits.py when files, programs or settings are missing or broken: no fault keeps a node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from limited_node import HOUR, MINUTE, POWEROFF, Node


@pytest.fixture
def over(node: Node) -> Node:
    """A node whose hours are over, with settings that say so."""
    node.booted(ago=3 * HOUR)
    node.tick(TRAINYARD_MAX_HOURS="4")
    settings = node.root / "etc/trainyard.env"
    settings.write_text(settings.read_text().replace("HOURS=4", "HOURS=2"))
    return node


def in_the_way(folder: Path) -> None:
    """Nothing can be read or written in a folder from here on."""
    shutil.rmtree(folder)
    folder.write_text("a file where a folder should be")


def test_a_record_that_cannot_be_written_keeps_no_node(over: Node) -> None:
    in_the_way(over.root / "run/trainyard")
    assert POWEROFF in over.run()


def test_a_first_boot_that_cannot_be_read_any_more_is_in_memory(over: Node) -> None:
    in_the_way(over.state)
    assert POWEROFF in over.run()


def test_without_any_record_the_hours_count_from_this_boot(over: Node) -> None:
    """By its own init's start: a container's host may be up for longer."""
    in_the_way(over.state)
    in_the_way(over.root / "run/trainyard")
    (over.root / "proc/1/stat").write_text(f"1 (init) S {'0 ' * 18}{10_000 * os.sysconf('SC_CLK_TCK')} 0\n")
    for up, ends in ((2 * HOUR - MINUTE, False), (2 * HOUR + MINUTE, True)):
        (over.root / "proc/uptime").write_text(f"{10_000 + up} 1.0\n")
        assert (POWEROFF in over.run()) == ends


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
@pytest.mark.parametrize("options", ["size=4k", "ro"])
def test_a_full_or_read_only_disk_keeps_no_node(over: Node, options: str) -> None:
    """A disk that is full or read-only, for real: everything but what is in memory."""
    disk = over.root / "var/lib/trainyard"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", disk], check=True)
    try:
        if options != "ro":
            with (disk / "full").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
                while True:
                    file.write(bytes(4096))
        assert POWEROFF in over.run()
    finally:
        subprocess.run(["umount", disk], check=True)


BROKEN = ["", "{", "[]", "null", '"text"', "{}", '{"time": "x"}', '{"time": NaN, "idle_since": []}', '{"time": 1e999}']


@pytest.mark.parametrize("text", [*BROKEN, "\udcff"])
@pytest.mark.parametrize("which", ["limits", "first-boot"])
def test_a_broken_record_keeps_no_node(over: Node, which: str, text: str) -> None:
    path = over.limits if which == "limits" else over.state / "first-boot.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    called: list[str] = []
    for _ in range(2):  # a record that the first run cannot make sense of is gone for the second
        try:
            called = over.run()
        except AssertionError:
            called = (over.root / "called").read_text().splitlines()
    assert POWEROFF in called


def test_a_first_boot_that_cannot_be_read_is_dated_by_its_file(node: Node) -> None:
    first = node.state / "first-boot.json"
    first.write_text("{")
    os.utime(first, (0, time.time() - 3 * HOUR))
    assert not node.ends(TRAINYARD_MAX_HOURS="4")
    assert abs(json.loads(first.read_text())["time"] - (time.time() - 3 * HOUR)) < 5, "and mended"


def test_a_first_boot_in_the_future_does_not_count(node: Node) -> None:
    """Or a clock that was wrong for a moment would give a node years."""
    node.booted(ago=-1000 * HOUR)
    node.tick(TRAINYARD_MAX_HOURS="4")
    assert node.record()["deadline"] < time.time() + 4 * HOUR + MINUTE


@pytest.mark.parametrize("name", ["wall", "runuser"])
@pytest.mark.parametrize("fault", ["exit 1", "kill -KILL $$", "missing"])
def test_what_it_calls_keeps_no_node(over: Node, name: str, fault: str) -> None:
    over.program(name, fault)
    if fault == "missing":
        (over.root / "bin" / name).write_bytes(b"\0")  # no program at all
    assert POWEROFF in over.run()


def test_a_poweroff_that_fails_is_done_by_force_and_then_by_the_kernel(over: Node) -> None:
    over.program("systemctl", '[ "$2" != -i ]')
    assert [line for line in over.run() if line.startswith("systemctl")] == [POWEROFF, "systemctl poweroff -f"]
    sysrq = over.root / "proc/sysrq-trigger"
    sysrq.write_text("")
    over.program("systemctl", "exit 1")
    over.run()
    assert sysrq.read_text() == "o"


def test_a_poweroff_that_is_taken_and_never_comes_is_done_by_force(over: Node) -> None:
    seen = [[line.removeprefix("systemctl ") for line in over.run() if "poweroff" in line] for _ in range(6)]
    assert seen == [["poweroff -i"]] * 4 + [["poweroff -f"]] * 2


def hours_of(node: Node) -> float:
    """How long the node may live, by its record."""
    record = node.record()
    return round((record["deadline"] - record["first"]["time"]) / HOUR)


@pytest.mark.parametrize(
    ("settings", "image", "hours", "idle"),
    [
        (None, "TRAINYARD_CLUSTER=aws-xeon\n", 24, 60),
        (None, None, 24, 60),
        ("", "TRAINYARD_CLUSTER=azure-xeon\n", 24, 60),
        ("TRAINYARD_MAX_HOURS=x\nTRAINYARD_IDLE_MINUTES=7\n", "TRAINYARD_CLUSTER=aws-xeon\n", 24, 7),
        ("TRAINYARD_MAX_HOURS=-1\nTRAINYARD_IDLE_MINUTES=1e9\n", "TRAINYARD_CLUSTER=aws-xeon\n", 24, 60),
        ("TRAINYARD_MAX_HOURS=\u0663\n", "TRAINYARD_CLUSTER=aws-xeon\n", 24, 60),
        ("\ufeffTRAINYARD_MAX_HOURS=3\r\nTRAINYARD_IDLE_MINUTES=5\r\n", None, 3, 5),
        ("TRAINYARD_MAX_HOURS=3\nTRAINYARD_MODE=\udcff\udcfe\n", None, 3, 60),
        ("TRAINYARD_CLUSTER=moon\nTRAINYARD_MAX_HOURS=3\n", "TRAINYARD_CLUSTER=aws-xeon\n", 3, 60),
        ("TRAINYARD_MAX_HOURS=0\n", "TRAINYARD_CLUSTER=aws-xeon\n", None, 60),
    ],
)
def test_the_limits_of_a_node_whose_settings_are_missing_or_bad(
    node: Node, settings: str | None, image: str | None, hours: int | None, idle: int
) -> None:
    for name, text in (("etc/trainyard.env", settings), ("opt/trainyard/image.env", image)):
        (node.root / name).parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            (node.root / name).write_bytes(text.encode(errors="surrogateescape"))
    node.run()
    assert node.record()["idle_minutes"] == idle
    assert hours_of(node) == hours if hours else node.record()["deadline"] > time.time() + 10000 * HOUR


@pytest.mark.parametrize("settings", [None, "TRAINYARD_CLUSTER=local\nTRAINYARD_MAX_HOURS=never\n"])
def test_a_local_node_has_no_limit_but_the_one_that_is_set(node: Node, settings: str | None) -> None:
    """It costs nothing, and this machine may be somebody's own: its timer ends itself."""
    (node.root / "opt/trainyard").mkdir(parents=True)
    (node.root / "opt/trainyard/image.env").write_text("TRAINYARD_CLUSTER=local\n")
    if settings:
        (node.root / "etc/trainyard.env").write_text(settings)
    node.booted(ago=10000 * HOUR)
    assert node.run() == ["systemctl stop --no-block trainyard-limits.timer"]
