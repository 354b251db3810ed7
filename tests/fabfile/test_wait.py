"""`fab wait` over SSH: nodes that become ready, fail, stay silent, end, come late, or are others."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sshd
from boot_records import FAILED, READY, event, put, state
from invoke.exceptions import Exit

from fabfile.remote import ended
from fabfile.remote.fleet import Fleet
from fabfile.remote.join import join
from fabfile.verbs.wait import follow_boot
from infra.inventory import Node, SshCluster, to_json

FAB = Path(sys.executable).with_name("fab")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SshCluster, list[sshd.Sshd]]]:
    sshd.require()
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    yard = sshd.Yard(tmp_path, [])
    sshd.keygen(yard.identity)
    port = sshd.free_port()
    servers = [yard.start(f"127.0.0.{i + 2}", port) for i in range(3)]
    for server in servers:
        state(server.root)
        (server.root / "etc/ssh").mkdir(parents=True)
    yield yard.cluster(*(server.node(f"node{i + 1}") for i, server in enumerate(servers))), servers
    yard.stop()


def be_ready(servers: list[sshd.Sshd], *which: int) -> None:
    for i in which or (1, 2, 3):
        put(state(servers[i - 1].root) / "ready.json", {**READY, "node": f"node{i}"})


@pytest.mark.acceptance  # three SSH servers, two starts of the command
def test_ready_nodes_are_joined_once(cluster: tuple[SshCluster, list[sshd.Sshd]], tmp_path: Path) -> None:
    machines, servers = cluster
    be_ready(servers)
    (tmp_path / "inventory.json").write_text(to_json(machines))
    argv: list[str | Path] = [FAB, "wait", "--timeout", "20", "--inventory", tmp_path / "inventory.json"]
    first = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert first.returncode == 0, first.stderr
    for name in ("node1", "node2", "node3"):
        assert f"{name}  ready (" in first.stdout
    assert "(3 changed)" in first.stdout
    assert first.stdout.splitlines()[-1].startswith("next: fab check --inventory ")
    known = (servers[0].root / "etc/ssh/ssh_known_hosts").read_text()
    for server in servers:
        assert f"[{server.address}]:{server.port} {server.host_key}" in known
    private = [path.read_text() for path in tmp_path.rglob("id_ed25519")]
    assert len(private) == len(set(private)) == 3

    second = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert second.returncode == 0, second.stderr
    assert "changed" not in second.stdout
    assert [path.read_text() for path in tmp_path.rglob("id_ed25519")] == private
    (servers[1].root / "etc/hosts").unlink()  # what a node lost is given back to it, and to it alone
    with Fleet(machines) as fleet:
        assert join(fleet) == ["node2"]


def test_a_nodes_word_about_its_key_is_not_taken_blindly(cluster: tuple[SshCluster, list[sshd.Sshd]]) -> None:
    """A node that is not itself any more must not get a line of its own into the others' authorized_keys."""
    machines, servers = cluster
    folder = servers[2].root / "root/.ssh"
    folder.mkdir(parents=True)
    (folder / "id_ed25519").write_text("private")
    (folder / "id_ed25519.pub").write_text('command="evil" ssh-ed25519 AAAA\n')
    with Fleet(machines) as fleet, pytest.raises(Exit, match="node3: cannot be joined"):
        join(fleet)
    assert not (servers[0].root / "etc/hosts").exists()


def test_a_failed_node_ends_the_wait_at_once(
    cluster: tuple[SshCluster, list[sshd.Sshd]], capsys: pytest.CaptureFixture[str]
) -> None:
    machines, servers = cluster
    be_ready(servers, 1)
    event(servers[1].root, "torch", "start")

    def fail() -> None:
        event(servers[1].root, "torch", "failed", 0.5)
        put(state(servers[1].root) / "failed.json", {**FAILED, "node": "node2"})

    timer = threading.Timer(0.7, fail)
    timer.start()
    began = time.monotonic()
    with Fleet(machines) as fleet, pytest.raises(Exit) as caught:
        follow_boot(fleet, timeout=60)
    assert time.monotonic() - began < 20
    assert caught.value.code == 1
    message = caught.value.message or ""
    assert message.splitlines()[:3] == [
        "node2  failed at step torch: no wheel for torch 2.13.0",
        "    looking for torch",
        "    ERROR: none found",
    ]
    assert "node2  step torch … 0.5 s FAILED" in capsys.readouterr().out


def test_a_silent_node_ends_the_wait_at_the_deadline(
    cluster: tuple[SshCluster, list[sshd.Sshd]], tmp_path: Path
) -> None:
    machines, servers = cluster
    be_ready(servers, 1)
    event(servers[1].root, "torch", "start")
    servers[2].stop()
    (tmp_path / "console").write_text("".join(f"console line {i}\n" for i in range(100)))
    nodes = [Node(**{**node.__dict__, "console": str(tmp_path / "console")}) for node in machines.nodes]
    machines = SshCluster(**{**machines.__dict__, "nodes": tuple(nodes)})
    began = time.monotonic()
    with Fleet(machines) as fleet, pytest.raises(Exit) as caught:
        follow_boot(fleet, timeout=1)
    assert time.monotonic() - began < 20
    assert caught.value.code == 1
    message = caught.value.message or ""
    assert "2 of 3 nodes not ready after 1 s" in message
    assert "node2  last seen: step torch has begun" in message
    assert "node3  last seen: " in message
    assert "Connection refused" in message
    assert "console line 99" in message
    assert "node1" not in message


def test_a_long_wait_says_who_is_waited_for(
    cluster: tuple[SshCluster, list[sshd.Sshd]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules[follow_boot.__module__], "_QUIET_SECONDS", 0.5)
    machines, servers = cluster
    be_ready(servers, 1)
    event(servers[1].root, "torch", "start")
    servers[2].stop()
    with Fleet(machines) as fleet, pytest.raises(Exit):
        follow_boot(fleet, timeout=3)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("waiting for ")]
    assert 2 <= len(lines) <= 6, lines
    assert re.fullmatch(
        r"waiting for 2 of 3 nodes \(\d s\): node2: step torch has begun; node3: .*Connection refused", lines[-1]
    )


def test_a_node_whose_machine_has_ended_ends_the_wait_at_once(
    cluster: tuple[SshCluster, list[sshd.Sshd]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines, servers = cluster
    be_ready(servers, 1, 2)
    servers[2].stop()
    monkeypatch.setattr(ended, "_GROUPS", f"{tmp_path}/groups/")
    nodes = []
    for node in machines.nodes:
        (tmp_path / "groups" / node.name).mkdir(parents=True)
        (tmp_path / "groups" / node.name / "cgroup.events").write_text("populated 1\nfrozen 0\n")
        (tmp_path / f"{node.name}.log").write_bytes(b"x" * 200_000 + f"\nlast of {node.name}\n".encode())
        own = {"control_group": f"{tmp_path}/groups/{node.name}", "console": str(tmp_path / f"{node.name}.log")}
        nodes.append(Node(**{**node.__dict__, **own}))
    machines = SshCluster(**{**machines.__dict__, "nodes": tuple(nodes)})
    (tmp_path / "groups/node3/cgroup.events").write_text("populated 0\nfrozen 0\n")
    began = time.monotonic()
    with Fleet(machines) as fleet, pytest.raises(Exit) as caught:
        follow_boot(fleet, timeout=60)
    assert time.monotonic() - began < 2
    lines = (caught.value.message or "").splitlines()
    assert lines[:2] == ["1 of 3 nodes are gone", f"node3  {ended.WHY}"]
    assert lines[-2:] == ["    last of node3", "next: fab up"]


def test_who_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended, "_GROUPS", f"{tmp_path}/")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "cgroup.events").write_text("populated 1\nfrozen 0\n")

    def is_gone(group: str) -> bool:
        return ended.is_gone(Node(name="node1", private_ip="10.0.0.1", control_group=group))

    assert not is_gone(f"{tmp_path}/one") and is_gone(f"{tmp_path}/two")
    (tmp_path / "one" / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert is_gone(f"{tmp_path}/one")
    for other in ("", "/etc", f"{tmp_path}/x/../../etc", "relative"):
        assert not is_gone(other), "of what is no group of this machine nothing is known"


def test_an_impostor_ends_the_wait_at_once(cluster: tuple[SshCluster, list[sshd.Sshd]], tmp_path: Path) -> None:
    machines, _ = cluster
    wrong = Node(**{**machines.nodes[1].__dict__, "host_key": sshd.keygen(tmp_path / "real")})
    machines = SshCluster(**{**machines.__dict__, "nodes": (machines.head, wrong, machines.nodes[2])})
    began = time.monotonic()
    with Fleet(machines) as fleet, pytest.raises(Exit, match=r"node2 .*HOST KEY MISMATCH") as caught:
        follow_boot(fleet, timeout=60)
    assert time.monotonic() - began < 20
    assert caught.value.code == 1


def test_a_node_that_starts_late_or_loses_the_connection_is_followed_to_the_end(
    cluster: tuple[SshCluster, list[sshd.Sshd]], capsys: pytest.CaptureFixture[str]
) -> None:
    machines, servers = cluster
    be_ready(servers, 2, 3)
    with Fleet(machines) as fleet:

        def disturb() -> None:
            fleet.connection(machines.head).transport.close()
            time.sleep(0.5)
            be_ready(servers, 1)

        timer = threading.Timer(0.8, disturb)
        timer.start()
        records = follow_boot(fleet, timeout=20)
    assert list(records) == ["node1", "node2", "node3"]
    assert "node1  connection lost, trying again" in capsys.readouterr().out
