"""SSH to nodes: host keys, and the jump host, against real servers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import sshd

from fabfile.backends.base import AnotherMachine, Unreachable
from fabfile.backends.ssh.head import lost_connections
from fabfile.remote.connection import connect
from fabfile.remote.known_hosts import (
    HostKeyMismatch,
    HostKeyUnknown,
    fingerprint,
    known_hosts,
)
from fabfile.remote.openssh import config_text, jump_node, options
from infra.inventory import Node, SshCluster


def openssh(cluster: SshCluster, node: Node, command: str) -> subprocess.CompletedProcess[str]:
    argv = ["ssh", *options(cluster, node), node.address, command]
    return subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=20)


def test_the_inventorys_key_is_accepted_without_a_question(yard: sshd.Yard) -> None:
    server = yard.start("127.0.0.2", sshd.free_port())
    cluster = yard.cluster(server.node("node1"))
    with connect(cluster, cluster.head) as connection:
        assert connection.run("echo $0; echo hello", hide=True, in_stream=False).stdout.endswith("hello\n")
    assert openssh(cluster, cluster.head, "echo hello").stdout == "hello\n"


def test_an_impostor_is_refused_before_a_command_is_sent(yard: sshd.Yard, tmp_path: Path) -> None:
    """The impostor would accept the operator's key and run anything: its sshd notes that nothing was asked of it."""
    trace = tmp_path / "trace"
    impostor = yard.start("127.0.0.2", sshd.free_port(), extra=f"ForceCommand /bin/sh -c 'echo ran >> {trace}'")
    real_key = sshd.keygen(tmp_path / "real")
    cluster = yard.cluster(impostor.node("node1", real_key))

    with pytest.raises(HostKeyMismatch) as caught:
        connect(cluster, cluster.head)
    message = str(caught.value)
    blobs = [key.split()[1] for key in (real_key, impostor.host_key)]
    for expected in ("node1", f"127.0.0.2:{impostor.port}", *(_fingerprint(blob) for blob in blobs)):
        assert expected in message
    assert "\n" not in message

    result = sshd.run_all(cluster, "touch /tmp/never")["node1"]
    assert (result.exited, result.stdout) == (255, "")
    assert "HOST KEY MISMATCH" in result.reason
    assert openssh(cluster, cluster.head, "touch /tmp/never").returncode == 255

    assert not trace.exists()
    for word in ("Accepted publickey", "Starting session", "userauth-request"):
        assert word not in impostor.log
    assert "SSH2_MSG_KEXINIT sent" in impostor.log  # it did talk to us


def _fingerprint(blob: str) -> str:
    import base64

    return fingerprint(base64.b64decode(blob))


def test_an_unknown_host_is_refused_and_the_operators_known_hosts_decides(yard: sshd.Yard, home: Path) -> None:
    server = yard.start("127.0.0.2", sshd.free_port())
    cluster = yard.cluster(server.node("node1", host_key=""))
    with pytest.raises(HostKeyUnknown, match=r"node1 .*host key is unknown"):
        connect(cluster, cluster.head)
    assert openssh(cluster, cluster.head, "true").returncode == 255
    assert "Accepted publickey" not in server.log

    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.2]:{server.port} {server.host_key}\n")
    with connect(cluster, cluster.head) as connection:
        assert connection.is_connected
    assert openssh(cluster, cluster.head, "echo hello").stdout == "hello\n"


def test_the_operators_known_hosts_has_no_say_where_the_inventory_has_a_key(
    yard: sshd.Yard, home: Path, tmp_path: Path
) -> None:
    server = yard.start("127.0.0.2", sshd.free_port())
    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.2]:{server.port} {server.host_key}\n")
    cluster = yard.cluster(server.node("node1", sshd.keygen(tmp_path / "other")))
    with pytest.raises(HostKeyMismatch):
        connect(cluster, cluster.head)
    assert openssh(cluster, cluster.head, "true").returncode == 255


def test_a_node_made_again_at_its_address_connects_and_its_old_key_is_refused(yard: sshd.Yard) -> None:
    port = sshd.free_port()
    old = yard.start("127.0.0.2", port)
    before = yard.cluster(old.node("node1"))
    assert sshd.run_all(before, "true")["node1"].ok
    old.stop()
    new = yard.start("127.0.0.2", port)
    after = yard.cluster(new.node("node1"))
    assert "HOST KEY MISMATCH" in sshd.run_all(before, "true")["node1"].reason
    with pytest.raises(AnotherMachine, match="HOST KEY MISMATCH"), lost_connections():
        connect(before, before.head)
    assert sshd.run_all(after, "true")["node1"].ok  # no question, and nobody had to remove a line
    assert openssh(after, after.head, "echo hello").stdout == "hello\n"
    assert old.host_key not in known_hosts(after).read_text()


def test_an_rsa_host_key_is_recognised_beside_others(yard: sshd.Yard, tmp_path: Path) -> None:
    """The inventory knows the RSA key only; paramiko would be shown the other one and call it a mismatch."""
    sshd.keygen(tmp_path / "second")
    server = yard.start("127.0.0.2", sshd.free_port(), key="rsa", extra=f"HostKey {tmp_path}/second")
    cluster = yard.cluster(server.node("node1"))
    assert sshd.run_all(cluster, "true")["node1"].ok
    assert openssh(cluster, cluster.head, "echo hello").stdout == "hello\n"


def test_the_operators_own_ssh_config_weakens_nothing(yard: sshd.Yard, home: Path, tmp_path: Path) -> None:
    server = yard.start("127.0.0.2", sshd.free_port())
    (home / ".ssh" / "config").write_text(
        "Host *\n  StrictHostKeyChecking no\n  ForwardAgent yes\n  Port 1\n  User nobody\n"
    )
    assert sshd.run_all(yard.cluster(server.node("node1")), "true")["node1"].ok
    wrong = yard.cluster(server.node("node1", sshd.keygen(tmp_path / "other")))
    with pytest.raises(HostKeyMismatch):
        connect(wrong, wrong.head)
    assert openssh(wrong, wrong.head, "true").returncode == 255


def test_the_jump_host_works_and_is_as_strict(yard: sshd.Yard, home: Path, tmp_path: Path) -> None:
    port = sshd.free_port()
    jump = yard.start("127.0.0.9", port)
    nodes = [yard.start(f"127.0.0.{i + 2}", port).node(f"node{i + 1}") for i in range(3)]
    cluster = yard.cluster(*nodes, jump_host=f"root@127.0.0.9:{port}")

    unknown = sshd.run_all(cluster, "true")
    assert all("host key is unknown" in result.reason and "jump" in result.reason for result in unknown.values())
    assert openssh(cluster, cluster.head, "true").returncode == 255
    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.9]:{port} {sshd.keygen(tmp_path / 'other')}\n")
    with pytest.raises(HostKeyMismatch, match="jump"):
        connect(cluster, cluster.head)
    assert "Accepted publickey" not in jump.log

    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.9]:{port} {jump.host_key}\n")
    assert {name: result.exited for name, result in sshd.run_all(cluster, "exit 4").items()} == dict.fromkeys(
        ("node1", "node2", "node3"), 4
    )
    assert jump.log.count("Accepted publickey") == 1  # one connection carries them all
    assert openssh(cluster, cluster.head, "echo hello").stdout == "hello\n"
    config = tmp_path / "ssh config"
    config.write_text(config_text(cluster))
    output = subprocess.run(["ssh", "-F", config, "node3", "echo hello"], capture_output=True, text=True, timeout=20)
    assert output.stdout == "hello\n", output.stderr


@pytest.mark.parametrize(
    ("jump_host", "user", "address", "port"),
    [
        ("10.0.0.1", "trainyard", "10.0.0.1", 22),
        ("ubuntu@bastion.example.org", "ubuntu", "bastion.example.org", 22),
        ("ubuntu@10.0.0.1:2222", "ubuntu", "10.0.0.1", 2222),
        ("[fd00::1]:2222", "trainyard", "fd00::1", 2222),
        ("fd00::1", "trainyard", "fd00::1", 22),
    ],
)
def test_the_jump_host_is_read_as_openssh_reads_it(
    jump_host: str, user: str, address: str, port: int, home: Path
) -> None:
    cluster = SshCluster(name="c", nodes=(Node(name="node1", private_ip="10.1.0.1"),), jump_host=jump_host)
    jump = jump_node(cluster)
    assert jump is not None
    assert (jump.address, jump.ssh_port) == (address, port)
    assert f"User={user}" in options(cluster, jump)
    assert "User=trainyard" in options(cluster, cluster.head)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (TimeoutError(), "no answer in time"),
        (EOFError(), "the far end closed it"),
        (OSError("no route to host"), "no route to host"),
    ],
)
def test_a_lost_connection_says_why(error: Exception, line: str) -> None:
    """Most of these errors have no text of their own."""
    with pytest.raises(Unreachable, match=f"^{line}$"), lost_connections():
        raise error
