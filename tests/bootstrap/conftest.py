"""Machines for the tests of bootstrap/."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from bootstrap_runner import BOOTSTRAP, VERSIONS_STEP, Machine
from cuda_machine import with_cuda
from limited_node import HOUR, Node


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    shutil.copytree(BOOTSTRAP, tmp_path / "bootstrap", ignore=shutil.ignore_patterns("steps", "__pycache__"))
    for folder in ("bin", "etc", "bootstrap/steps/image", "bootstrap/steps/node"):
        (tmp_path / folder).mkdir(parents=True)
    machine = Machine(tmp_path)
    machine.program("systemctl")
    machine.step("image/10-first", "echo one")
    machine.step("image/20-second", VERSIONS_STEP)
    machine.step("node/10-third", "echo three")
    return machine


@pytest.fixture
def gpus(machine: Machine) -> Machine:
    """A machine with the files of profile cuda, but no steps of the others."""
    return with_cuda(machine)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    for folder in ("bin", "etc", "proc", "run/trainyard", "var/lib/trainyard"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/machine-id").write_text("i\n")
    for name in ("systemctl", "wall"):
        node.program(name)
    node.program("runuser", "exit 255")  # the head does not answer
    node.process(1, "/sbin/init")
    node.process(77, "/usr/lib/systemd/systemd-logind")
    node.process(78, "sshd: /usr/sbin/sshd -D [listener] 0 of 200-400 startups")
    node.process(79, "/sbin/agetty -o -- \\u --noclear tty1 linux")
    node.booted(ago=HOUR)
    return node
