"""The files by which nodes trust each other, as they are installed on a node."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fabfile.remote.join import make_blocks
from infra.inventory import Node
from node import ssh_trust

NODES = tuple(Node(name=f"node{i}", private_ip=f"10.0.0.{i}") for i in (1, 2, 3))
NODE_KEYS = {node.name: {"key": f"ssh-ed25519 KEY{node.name}", "port": "22", "digest": ""} for node in NODES}
HOST_KEYS = {node.name: f"ssh-ed25519 HOST{node.name}" for node in NODES}
BLOCKS = make_blocks(NODES, "trainyard", NODE_KEYS, HOST_KEYS)
NAMES = [node.name for node in NODES]


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, Path]:
    """A root and a home with what a Debian node has in these files."""
    home = tmp_path / "home/trainyard"
    (home / ".ssh").mkdir(parents=True)
    (tmp_path / "etc/ssh").mkdir(parents=True)
    (tmp_path / "etc/hosts").write_text("127.0.0.1\tlocalhost\n127.0.1.1\tnode1.lan node1\n10.9.9.9\tfileserver\n")
    (home / ".ssh/authorized_keys").write_text("ssh-ed25519 OPERATOR me@laptop")  # no newline at the end
    (home / ".ssh/authorized_keys").chmod(0o600)
    return tmp_path, home


def test_install_keeps_what_is_not_ours(machine: tuple[Path, Path]) -> None:
    root, home = machine
    ssh_trust.install(root, home, BLOCKS, NAMES)
    hosts = (root / "etc/hosts").read_text()
    assert "10.0.0.1 node1\n10.0.0.2 node2\n10.0.0.3 node3\n" in hosts
    assert "127.0.0.1\tlocalhost\n" in hosts
    assert "10.9.9.9\tfileserver\n" in hosts
    assert "127.0.1.1" not in hosts
    keys = (home / ".ssh/authorized_keys").read_text().splitlines()
    assert keys[0] == "ssh-ed25519 OPERATOR me@laptop"
    assert "ssh-ed25519 KEYnode3 trainyard@node3" in keys
    assert (home / ".ssh/authorized_keys").stat().st_mode & 0o777 == 0o600
    assert (home / ".ssh/config").stat().st_mode & 0o777 == 0o600
    assert (root / "etc/ssh/ssh_known_hosts").stat().st_mode & 0o777 == 0o644
    assert not [path for path in root.rglob(".*") if path.is_file()]  # no temporary file stays


def test_install_twice_changes_nothing_and_another_set_replaces_the_first(machine: tuple[Path, Path]) -> None:
    root, home = machine
    ssh_trust.install(root, home, BLOCKS, NAMES)
    paths = ssh_trust.targets(root, home).values()
    before = [(path.read_text(), path.stat().st_ino) for path in paths]
    ssh_trust.install(root, home, BLOCKS, NAMES)
    assert [(path.read_text(), path.stat().st_ino) for path in paths] == before
    assert ssh_trust.digest(ssh_trust.current(root, home)) == ssh_trust.digest(BLOCKS)

    fewer = make_blocks(NODES[:2], "trainyard", NODE_KEYS, HOST_KEYS)
    assert ssh_trust.digest(fewer) != ssh_trust.digest(BLOCKS)
    ssh_trust.install(root, home, fewer, NAMES[:2])
    for path in paths:
        text = path.read_text()
        assert "node3" not in text
        assert text.count(ssh_trust.BEGIN) == 1
    assert (home / ".ssh/authorized_keys").read_text().startswith("ssh-ed25519 OPERATOR me@laptop\n")


def test_the_operators_own_ssh_settings_on_a_node_stay_global(machine: tuple[Path, Path]) -> None:
    _, home = machine
    (home / ".ssh/config").write_text("ServerAliveInterval 7\n")
    ssh_trust.install(*machine, BLOCKS, NAMES)
    argv = ["ssh", "-G", "-F", str(home / ".ssh/config")]
    inside = subprocess.run([*argv, "node2"], capture_output=True, text=True, check=True).stdout
    outside = subprocess.run([*argv, "example.org"], capture_output=True, text=True, check=True).stdout
    assert "stricthostkeychecking true" in inside
    assert "batchmode yes" in inside
    assert "batchmode no" in outside
    assert all("serveraliveinterval 7" in text for text in (inside, outside))
