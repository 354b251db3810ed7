"""How the timer of bootstrap/limits.py is started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from bootstrap_runner import BOOTSTRAP
from limited_node import ENVIRONMENT, Node


@pytest.fixture
def machine(node: Node) -> Node:
    """With a copy of the bootstrap that has one step of its own."""
    shutil.copytree(BOOTSTRAP, node.root / "bootstrap", ignore=shutil.ignore_patterns("steps", "__pycache__"))
    for part in ("node", "image"):
        step = node.root / f"bootstrap/steps/{part}/10-first"
        step.parent.mkdir(parents=True)
        step.write_text("#!/bin/sh\nexit 1\n")
        step.chmod(0o755)
    return node


def bootstrap(machine: Node, **changes: str) -> list[str]:
    """One run of it; what it asked of systemd for the limits."""
    values = {**ENVIRONMENT, "TRAINYARD_PROFILE": "native", "TRAINYARD_COLLECTIVES": "gloo", "TRAINYARD_IMAGE": "key"}
    lines = [f"{key}={value}\n" for key, value in {**values, **changes}.items()]
    (machine.root / "etc/trainyard.env").write_text("".join(lines))
    return boot(machine)


def boot(machine: Node) -> list[str]:
    (machine.root / "called").write_text("")
    environment = {"PATH": f"{machine.root}/bin{os.pathsep}{os.environ['PATH']}", "TRAINYARD_PREFIX": str(machine.root)}
    subprocess.run([machine.root / "bootstrap/bootstrap.sh"], env=environment, capture_output=True, timeout=30)
    called = (machine.root / "called").read_text().replace(f"{machine.root}/bootstrap/", "")
    return [line for line in called.splitlines() if "trainyard-limits" in line]


def failed_step(machine: Node) -> str:
    return str(json.loads((machine.state / "failed.json").read_text())["step"])


START = "systemctl start trainyard-limits.timer"
LINK = "systemctl link trainyard-limits.service"


def test_the_bootstrap_starts_the_timer_first_so_that_a_node_that_fails_ends_as_well(machine: Node) -> None:
    assert bootstrap(machine, TRAINYARD_MAX_HOURS="24") == [START]
    assert failed_step(machine) == "first", "and it did fail"


@pytest.mark.parametrize("bad", ["TRAINYARD_MODE", "TRAINYARD_PROFILE", "TRAINYARD_MAX_HOURS", "TRAINYARD_CLUSTER"])
def test_settings_that_make_no_sense_start_the_timer_all_the_same(machine: Node, bad: str) -> None:
    assert bootstrap(machine, **{bad: "nonsense"}) == [START]
    assert failed_step(machine) == "settings"


def test_without_any_settings_the_timer_is_started(machine: Node) -> None:
    assert boot(machine) == [START]
    assert failed_step(machine) == "settings"


def test_a_bare_machine_gets_the_timer_and_a_builder_takes_it_along_without_starting_it(machine: Node) -> None:
    machine.program("systemctl", '[ "$1" != start ]')
    assert bootstrap(machine) == [START, LINK, "systemctl enable --now trainyard-limits.timer"]
    assert bootstrap(machine, TRAINYARD_MODE="bake") == [LINK, "systemctl enable trainyard-limits.timer"]


def test_a_timer_that_cannot_be_started_is_a_failure_with_a_record(machine: Node) -> None:
    machine.program("systemctl", "echo no bus >&2; exit 1")
    bootstrap(machine, TRAINYARD_IDLE_MINUTES="60")
    failed = json.loads((machine.state / "failed.json").read_text())
    assert (failed["step"], failed["reason"]) == ("limits", "cannot start the timer of the node's limits: no bus")


def test_systemd_knows_every_word_of_the_units(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze on this machine")
    units = [Path(shutil.copy(unit, tmp_path)) for unit in sorted(BOOTSTRAP.glob("trainyard-limits.*"))]
    argv: list[str | Path] = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (len(units), done.returncode, done.stderr) == (2, 0, "")
