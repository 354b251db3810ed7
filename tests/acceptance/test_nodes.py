"""Nodes that die, change, come and go: each touches only itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from on_host import Traces, boots, engines, groups, members
from polling import until
from project import Project

HOG = "python3 -c \"x = []\nwhile True: x.append(b'x' * 2**20)\""


@pytest.fixture(scope="module")
def clusters(make_shared_project: Callable[..., Project]) -> Iterator[dict[str, Project]]:
    """The file's cluster on each engine: made at first use, left by each test with two nodes that run."""
    made: dict[str, Project] = {}
    yield made
    for project in made.values():
        project.fab("destroy", "--yes")
        Traces(project).check_nothing_is_left()


@pytest.fixture(params=engines())
def cluster(
    request: pytest.FixtureRequest, clusters: dict[str, Project], make_shared_project: Callable[..., Project]
) -> Project:
    engine = request.param
    if engine not in clusters:
        project = make_shared_project(engine)
        project.configure(nodes=2)
        project.fab("up", "--yes", timeout=600)
        project.fab("wait")
        clusters[engine] = project
    return clusters[engine]


on_one_engine = pytest.mark.parametrize("cluster", ["embedded"], indirect=True)


def test_a_dead_node_is_replaced_alone(cluster: Project) -> None:
    before, keys = boots(cluster.stack), host_keys(cluster)
    os.kill(before["node2"][0], signal.SIGKILL)  # its init: everything in its PID namespace dies with it
    # Until systemd-nspawn has cleaned up, the node might be about to boot again, and counts as alive.
    until(lambda: not members(cluster.stack, "node2"), 30, "node2 is dead")
    assert "node2" in cluster.fab("refresh").stdout
    cluster.fab("up", "--yes")
    after = boots(cluster.stack)
    assert after["node1"] == before["node1"] and after["node2"] != before["node2"]
    # At the same address there is another key now: SSH follows the inventory, and nothing else.
    cluster.fab("wait")
    assert host_keys(cluster)["node1"] == keys["node1"] and host_keys(cluster)["node2"] != keys["node2"]
    known = (cluster.home / ".trainyard" / cluster.stack / "known_hosts").read_text()
    assert host_keys(cluster)["node2"] in known and keys["node2"] not in known
    assert "[node2] node2" in cluster.ssh("node2", "hostname").stdout
    assert cluster.fab("ssh-config").returncode == 0
    config = cluster.home / ".trainyard" / cluster.stack / "ssh_config"
    assert re.search(r"StrictHostKeyChecking\s+yes", config.read_text())
    output = subprocess.check_output(
        ["ssh", "-F", str(config), "-o", "BatchMode=yes", "node2", "ssh node1 hostname"], env=cluster.env, text=True
    )
    assert output == "node1\n", "the other node knows the new one's key, and the new one the other's"


@pytest.mark.faults
def test_a_node_whose_supervisor_was_killed_is_replaced_alone(cluster: Project) -> None:
    """SIGKILL of systemd-nspawn leaves the machine's own init running; what would end that is killed before."""
    before = boots(cluster.stack)
    for part in ("keeper", "supervisor"):
        for pid in members(cluster.stack, "node1", part):
            with suppress(ProcessLookupError):  # what watches the console ends with what keeps the machine
                os.kill(pid, signal.SIGKILL)
    until(lambda: not members(cluster.stack, "node1", "supervisor"), 10, "its supervisor is dead")
    assert boots(cluster.stack) == before, "its init lives"
    assert "node1" in cluster.fab("refresh").stdout
    cluster.fab("up", "--yes")
    after = boots(cluster.stack)
    assert after["node2"] == before["node2"] and after["node1"] != before["node1"]
    until(lambda: not is_running(before["node1"][0]), 10, "the old one is gone")
    cluster.fab("wait")


@pytest.mark.faults
@on_one_engine
def test_a_node_whose_systemd_nspawn_was_killed_ends_whole(cluster: Project) -> None:
    before = boots(cluster.stack)
    for pid in members(cluster.stack, "node1", "supervisor"):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not members(cluster.stack, "node1"), 10, "nothing of it runs on")
    cluster.fab("up", "--yes")
    after = boots(cluster.stack)
    assert after["node2"] == before["node2"] and after["node1"] != before["node1"]
    cluster.fab("wait")


def test_limits_change_without_a_boot(cluster: Project) -> None:
    before = boots(cluster.stack)
    assert limits(cluster, "node1") == (2048, 1.0)
    cluster.configure(memoryMb=768, cpus=2)
    cluster.fab("up", "--yes")
    assert {limits(cluster, name) for name in before} == {(768, 2.0)}
    cluster.configure(memoryMb=2048, cpus=1)
    cluster.fab("up", "--yes")
    assert {limits(cluster, name) for name in before} == {(2048, 1.0)}
    assert boots(cluster.stack) == before


def test_nodes_come_and_go_alone(cluster: Project) -> None:
    before = boots(cluster.stack)
    cluster.configure(nodes=3)
    cluster.fab("up", "--yes")
    three = boots(cluster.stack)
    assert set(three) == {"node1", "node2", "node3"} and before.items() < three.items()
    cluster.configure(nodes=1)
    cluster.fab("up", "--yes")
    assert boots(cluster.stack) == {"node1": before["node1"]}
    assert {resource.owner for resource in cluster.remaining()} == {"node1", "network", "stack-id"}
    cluster.configure(nodes=2)
    cluster.fab("up", "--yes")
    assert boots(cluster.stack)["node1"] == before["node1"]
    cluster.fab("wait")


@on_one_engine
def test_a_node_over_its_memory_dies_alone(cluster: Project) -> None:
    cluster.configure(memoryMb=512)
    cluster.fab("up", "--yes")
    before = boots(cluster.stack)
    hog = cluster.ssh("node2", HOG, code=None)
    assert hog.returncode != 0 and "MemoryError" not in hog.stderr, hog
    assert "[node2] node2" in cluster.ssh("node2", "hostname").stdout
    assert "[node1] node1" in cluster.ssh("node1", "hostname").stdout
    assert boots(cluster.stack) == before
    cluster.configure(memoryMb=2048)
    cluster.fab("up", "--yes")


@on_one_engine
def test_two_stacks_do_not_touch_each_other(cluster: Project, make_project: Callable[..., Project]) -> None:
    before = boots(cluster.stack)
    other = make_project()
    own, inside = other.cidr, cluster.cidr.replace("/24", "/25")
    other.configure(nodes=1, cidr=inside)
    refused = other.fab("up", "--yes", code=2)
    assert refused.stderr.startswith(f"cidr = '{inside}'") and other.remaining() == []
    other.configure(cidr=own)
    other.fab("up", "--yes")
    other.fab("wait")
    traces = Traces(other)
    traces.note()
    ours, theirs = (project.inventory()["nodes"][0]["private_ip"] for project in (cluster, other))
    for project, far in ((cluster, theirs), (other, ours)):
        gateway = far.rpartition(".")[0] + ".1"
        for address in (far, gateway):
            unreached = project.ssh("node1", f"ping -c 1 -W 1 {address}", code=None)
            assert unreached.returncode != 0, unreached.stdout
    other.fab("destroy", "--yes")
    traces.check_nothing_is_left()
    assert boots(cluster.stack) == before
    assert "[node2] node2" in cluster.fab("run", "hostname").stdout


def is_running(pid: int) -> bool:
    """Whether a process is there and is no zombie, which only its parent can end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def host_keys(project: Project) -> dict[str, str]:
    return {node["name"]: node["host_key"] for node in project.inventory()["nodes"]}


def limits(project: Project, node: str) -> tuple[int, float]:
    """A node's memory in MiB and its CPUs, as the kernel holds them."""
    files = {path.name: path.read_text() for group in groups(project.stack) for path in limit_files(group / node)}
    if "memory.max" in files:
        quota, period = files["cpu.max"].split()
        return int(files["memory.max"]) // 2**20, int(quota) / int(period)
    cpus = int(files["cpu.cfs_quota_us"]) / int(files["cpu.cfs_period_us"])
    return int(files["memory.limit_in_bytes"]) // 2**20, cpus


def limit_files(group: Path) -> list[Path]:
    names = ("memory.max", "cpu.max", "memory.limit_in_bytes", "cpu.cfs_quota_us", "cpu.cfs_period_us")
    return [group / name for name in names if (group / name).exists()]
