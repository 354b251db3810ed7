"""Nodes that end by themselves, with nobody there to end them: when their hours are over, or when nobody uses them.

The limits are those of a stack; a test moves a node's first boot into the past instead of waiting for hours. What is
waited for is seen from this machine: an SSH session would be a use of the node.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from jobs_on_nodes import DATA, ENDLESS, JOB
from on_host import Traces, boots, members
from polling import until
from project import Project

pytestmark = [pytest.mark.faults, pytest.mark.soak, pytest.mark.timeout(600)]

TICK = 35.0
"""Seconds from one look of a node at its limits to the next, and a little more."""
DOWN = 20.0
"""Seconds for a machine to shut down."""


@pytest.fixture
def cluster(make_project: Callable[..., Project]) -> Iterator[Project]:
    """Two nodes with an hour to live, that may be idle for half of it."""
    project = make_project()
    project.configure(nodes=2, maxHours=1, idleMinutes=30)
    project.fab("up", "--yes", timeout=900)
    project.fab("wait")
    (project.root / "job.toml").write_text(JOB)
    project.fab("run", f'cd && python3 -c "{DATA}"')
    yield project
    project.fab("destroy", "--yes")
    Traces(project).check_nothing_is_left()


def ends_in(project: Project, node: str, seconds: float) -> None:
    """Move a node's first boot so that its hour is over in so many seconds."""
    file = "/var/lib/trainyard/first-boot.json"  # there from the node's first look at its limits, 20 s after its boot
    project.ssh(node, f"timeout {TICK:.0f} sh -c 'until test -e {file}; do sleep 0.5; done'")
    first = int(time.time() + seconds - 3600)
    project.ssh(node, f'sudo sed -i \'s/"time": [0-9]*/"time": {first}/\' {file}')


def limits(project: Project) -> dict[str, dict[str, object]]:
    """What `fab status` says of each node's limits, once each has looked at them."""

    def known() -> dict[str, dict[str, object]]:
        nodes = json.loads(project.fab("status", "--json").stdout)["nodes"]
        return {node["name"]: node["limits"] for node in nodes if node["limits"]}

    until(lambda: len(known()) == 2, TICK, "both nodes have looked at their limits")
    return known()


def job(project: Project, *argv: str) -> str:
    """The id of a job that nobody follows and that trains."""
    started = project.fab("train", "job.toml", ENDLESS, "--detach", *argv).stdout.partition(":")[0]
    until(lambda: "step 3/" in project.fab("logs", started).stdout, 90, f"step 3 of {started}")
    return started


def state(project: Project, name: str) -> dict[str, str]:
    found: dict[str, str] = next(one for one in json.loads(project.fab("jobs", "--json").stdout) if one["id"] == name)
    return found


def test_a_node_ends_when_its_hours_are_over_and_alone(cluster: Project) -> None:
    before = limits(cluster)
    assert all(0 < int(str(limit["expires_in_seconds"])) <= 3600 for limit in before.values())
    table = cluster.fab("status").stdout
    assert "ENDS" in table and "in 5" in table
    living = boots(cluster.stack)
    ends_in(cluster, "node2", -1)
    until(lambda: "node2" not in boots(cluster.stack), TICK + DOWN, "node2 has ended by itself")
    assert boots(cluster.stack)["node1"] == living["node1"]
    assert "node2" in cluster.fab("refresh").stdout
    cluster.fab("up", "--yes")
    cluster.fab("wait")
    after = limits(cluster)
    assert int(str(after["node2"]["expires_in_seconds"])) > int(str(after["node1"]["expires_in_seconds"]))


def test_a_node_whose_disk_is_read_only_and_whose_records_are_broken_ends_all_the_same(cluster: Project) -> None:
    limits(cluster)
    ends_in(cluster, "node2", -1)
    read_only = "mount --bind {0} {0} && mount -o remount,ro,bind {0}"
    folders = " && ".join(read_only.format(folder) for folder in ("/var/lib/trainyard", "/etc", "/var/log"))
    break_records = "mkdir -p /run/trainyard && echo broken >/run/trainyard/limits.json"
    cluster.ssh("node2", f"sudo sh -c '{folders} && {break_records}'")
    until(lambda: "node2" not in boots(cluster.stack), TICK + DOWN, "node2 has ended by itself")


def test_a_node_that_gets_no_settings_or_bad_ones_has_its_limit(cluster: Project) -> None:
    """Of an image of a cloud's: its own settings are lost here, and cloud-init is not asked again."""
    cloud = "echo TRAINYARD_CLUSTER=aws-xeon >/opt/trainyard/image.env"
    bad = "sed -i -e s/HOURS=.*/HOURS=soon/ -e s/MODE=.*/MODE=/ -e s/CLUSTER=.*/CLUSTER=moon/ /etc/trainyard.env"
    cluster.ssh("node1", f"sudo sh -c '{cloud} && rm /etc/trainyard.env && rm -f /run/trainyard/limits.json'")
    cluster.ssh("node2", f"sudo sh -c '{cloud} && {bad} && rm -f /run/trainyard/limits.json'")
    cluster.fab("run", "sudo systemctl restart trainyard-bootstrap", code=None)
    status = json.loads(cluster.fab("status", "--json").stdout)["nodes"]
    assert [node["state"] for node in status] == ["failed", "failed"]
    assert ["TRAINYARD_MODE" in node["reason"] or "missing" in node["reason"] for node in status] == [True, True]
    found = limits(cluster)
    assert all(23 * 3600 < int(str(one["expires_in_seconds"])) <= 24 * 3600 for one in found.values())
    assert [found[node]["idle_minutes"] for node in ("node1", "node2")] == [60, 30]


def test_a_laptop_that_vanishes_is_no_login_any_more_after_75_seconds(cluster: Project) -> None:
    node = next(one for one in cluster.inventory()["nodes"] if one["name"] == "node2")
    known = cluster.home / ".trainyard" / cluster.stack / "known_hosts"
    options = ["-i", str(cluster.home / ".ssh/id_ed25519"), "-o", f"UserKnownHostsFile={known}", "-F", "none"]
    ssh = subprocess.Popen(
        ["ssh", "-tt", *options, f"trainyard@{node['private_ip']}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: logins(cluster, "node2"), 20, "somebody is logged in")
        until(lambda: limits(cluster)["node2"]["used_by"] == "login", 2 * TICK, "which is a use")
        os.kill(ssh.pid, signal.SIGSTOP)  # as under a lid that is closed: the connection stays, and nobody answers
        began = time.monotonic()
        until(lambda: not logins(cluster, "node2"), 95, "the session is gone")  # 75 s, and a busy machine
        assert time.monotonic() - began > 30, "a network that is gone for half a minute costs nobody the session"
        until(lambda: limits(cluster)["node2"]["used_by"] == "", 2 * TICK, "and is no use any more")
    finally:
        ssh.kill()
        ssh.wait()


def logins(project: Project, node: str) -> list[int]:
    """Shells of a terminal on a node, as this machine sees them."""
    found = []
    for pid in members(project.stack, node):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"-bash"):
                found.append(pid)
    return found


def test_a_job_is_stopped_with_a_checkpoint_before_its_node_ends(cluster: Project) -> None:
    running = job(cluster)
    ends_in(cluster, "node2", 75)
    until(lambda: state(cluster, running)["state"] == "CANCELLED", TICK + 40, "the job is stopped")
    assert "is in the checkpoint" in state(cluster, running)["reason"]
    log = cluster.fab("logs", running).stdout
    assert "warning: node2 ends in 1 minutes" in log and "stopping: a checkpoint first" in log
    assert "node2" in boots(cluster.stack), "the job ends before the node does"
    until(lambda: "node2" not in boots(cluster.stack), 75 + TICK + DOWN, "node2 has ended by itself")
    cluster.fab("up", "--yes")
    cluster.fab("wait")
    cluster.fab("run", f'cd && python3 -c "{DATA}"', "--nodes", "node2")
    resumed = cluster.fab("train", "job.toml", ENDLESS, "--detach", "--resume", running).stdout
    assert resumed.startswith(f"{running}: ")
    cluster.fab("stop", running)


def test_no_node_goes_while_a_job_runs_anywhere_and_all_go_together_afterwards(cluster: Project) -> None:
    running = job(cluster, "--nodes", "1")
    before = boots(cluster.stack)
    cluster.fab("run", "sudo sed -i 's/IDLE_MINUTES=.*/IDLE_MINUTES=1/' /etc/trainyard.env")
    time.sleep(60 + 2 * TICK + DOWN)
    assert boots(cluster.stack) == before, "node2 has nothing to do, and is still there for the next job"
    assert limits(cluster)["node1"]["used_by"] == "job"
    cluster.fab("stop", running)
    # The worker goes when the head has been idle for as long as well, and the head two minutes later.
    until(lambda: set(boots(cluster.stack)) <= {"node1"}, 60 + 3 * TICK + DOWN, "the worker has gone")
    until(lambda: not boots(cluster.stack), 120 + 2 * TICK + DOWN, "the head has gone")
