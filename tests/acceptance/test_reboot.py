"""A node that reboots itself comes back with its disk, one that powers off does not, and none of them spins."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from on_host import Traces, boots, members, processes
from polling import until
from project import Project

from infra.clouds.local import nodes

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1500)]  # a bake, where nobody has baked yet
LOOP = """[Service]
ExecStart=/usr/bin/systemctl reboot --force
[Install]
WantedBy=sysinit.target
"""


@pytest.fixture(scope="module")
def cluster(make_shared_project: Callable[..., Project]) -> Iterator[Project]:
    """Two nodes, ready; each test leaves them so."""
    project = make_shared_project()
    project.configure(nodes=2)
    project.fab("up", "--yes", timeout=1200)
    project.fab("wait")
    yield project
    traces = Traces(project)
    traces.note()
    project.fab("destroy", "--yes")
    traces.check_nothing_is_left()


def reboot(project: Project, node: str) -> None:
    """From inside, as a person would, and wait until its next init runs."""
    before = boots(project.stack)[node]
    project.ssh(node, "sudo systemctl reboot", code=None)  # the connection goes with it
    until(lambda: boots(project.stack).get(node, before) != before, 30, f"{node} boots again")


def states(project: Project) -> dict[str, Any]:
    record = json.loads(project.fab("status", "--json").stdout)
    return {node["name"]: node["state"] for node in record["nodes"]}


def test_a_node_that_reboots_itself_comes_back_with_its_disk(cluster: Project) -> None:
    for pid in processes(cluster):  # whoever made it may be gone: what keeps it is none of the operator's processes
        if pid not in members(cluster.stack):
            os.kill(pid, signal.SIGKILL)
    before, known = boots(cluster.stack), cluster.inventory()["nodes"]
    cluster.ssh("node2", "echo kept | sudo tee /srv/kept ~/kept")
    began = time.monotonic()
    reboot(cluster, "node2")
    cluster.fab("wait")
    took = time.monotonic() - began
    assert took < 40, f"ready again after {took:.1f} s"
    after = boots(cluster.stack)
    assert after["node1"] == before["node1"] and after["node2"] != before["node2"]
    assert cluster.ssh("node2", "cat ~/kept; sudo cat /srv/kept; hostname").stdout.split() == (
        ["[node2]", "kept"] * 2 + ["[node2]", "node2"]
    )
    assert states(cluster) == {"node1": "ready", "node2": "ready"}
    assert cluster.inventory()["nodes"] == known
    assert "no changes" in cluster.fab("up", "--yes").stdout
    for here, there in (("node1", "node2"), ("node2", "node1")):
        assert f"[{here}] {there}" in cluster.ssh(here, f"ssh {there} hostname").stdout


def test_a_node_that_is_booting_again_is_not_taken_for_dead(cluster: Project) -> None:
    before = boots(cluster.stack)
    cluster.ssh("node2", "sudo systemctl reboot", code=None)
    while boots(cluster.stack).get("node2") in (None, before["node2"]):
        assert nodes.machine(cluster.stack, "node2").is_alive()
    assert "no changes" in cluster.fab("up", "--yes").stdout
    cluster.fab("wait")


@pytest.mark.soak
def test_a_node_that_reboots_for_ever_does_not_spin_and_can_be_ended(cluster: Project) -> None:
    cluster.ssh(
        "node2", f"sudo tee /etc/systemd/system/loop.service >/dev/null <<'END'\n{LOOP}END\nsudo systemctl enable loop"
    )
    console = nodes.machine(cluster.stack, "node2").console
    reboot(cluster, "node2")
    time.sleep(25)
    lines = [line for line in console.read_text(errors="replace").splitlines() if "trainyard: reboot" in line]
    assert 3 <= len(lines) <= 8, lines
    assert "begins in 4 s" in lines[-1] or "begins in 8 s" in lines[-1] or "begins in 16 s" in lines[-1]
    cluster.configure(nodes=1)
    cluster.fab("up", "--yes")
    assert not members(cluster.stack, "node2") and set(boots(cluster.stack)) == {"node1"}
    cluster.configure(nodes=2)
    cluster.fab("up", "--yes")
    cluster.fab("wait")


def test_a_node_that_powers_off_stays_off(cluster: Project) -> None:
    cluster.ssh("node2", "sudo systemctl poweroff", code=None)
    until(lambda: not members(cluster.stack, "node2"), 30, "nothing of it runs")
    time.sleep(2)
    assert not members(cluster.stack, "node2") and not nodes.machine(cluster.stack, "node2").is_alive()
    cluster.fab("up", "--yes")
    cluster.fab("wait")
