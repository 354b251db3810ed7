"""The operator's key, known_hosts and ssh_config."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import sshd
from invoke.exceptions import Exit
from polling import until

from fabfile.remote.connection import connect
from fabfile.remote.known_hosts import (
    SshError,
    directory,
    forget,
    known_hosts,
    write,
)
from fabfile.remote.openssh import config_text, options
from fabfile.targets import choose, load
from infra.inventory import InventoryError, Node, SshCluster, to_json

FAB = Path(sys.executable).with_name("fab")


def test_a_refused_key_is_said_in_one_line(yard: sshd.Yard, tmp_path: Path) -> None:
    server = yard.start("127.0.0.2", sshd.free_port())
    cluster = yard.cluster(server.node("node1"))
    sshd.keygen(tmp_path / "stranger")
    stranger = SshCluster(**{**cluster.__dict__, "identity_file": str(tmp_path / "stranger")})
    with pytest.raises(SshError, match=r"node1 .*refuses user"):
        connect(stranger, stranger.head)


def test_a_key_with_a_passphrase_is_used_through_the_agent(
    yard: sshd.Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in (yard.identity, Path(f"{yard.identity}.pub")):
        file.unlink()
    sshd.keygen(yard.identity, passphrase="correct horse")
    cluster = yard.cluster(yard.start("127.0.0.2", sshd.free_port()).node("node1"))
    with pytest.raises(Exit, match="passphrase") as caught:
        sshd.run_all(cluster, "true")
    assert caught.value.code == 2

    agent = subprocess.Popen(["ssh-agent", "-D", "-a", tmp_path / "agent"], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        until((tmp_path / "agent").exists)
        asked = tmp_path / "askpass"
        asked.write_text("#!/bin/sh\necho correct horse\n")
        asked.chmod(0o755)
        env = {**os.environ, "SSH_ASKPASS": str(asked), "SSH_ASKPASS_REQUIRE": "force"}
        subprocess.run(["ssh-add", "-q", yard.identity], env=env, check=True, stdin=subprocess.DEVNULL)
        assert sshd.run_all(cluster, "true")["node1"].ok
    finally:
        agent.terminate()
        agent.wait()


def test_a_missing_key_file_is_one_line_and_exit_code_2(home: Path) -> None:
    cluster = SshCluster(name="c", nodes=(Node(name="node1", private_ip="127.0.0.2"),), identity_file="/nowhere/key")
    with pytest.raises(Exit, match="identity_file = '/nowhere/key': there is no such file") as caught:
        sshd.run_all(cluster, "true")
    assert caught.value.code == 2


def test_known_hosts_is_private_rewritten_only_on_change_and_forgotten(home: Path) -> None:
    cluster = SshCluster(name="c", nodes=(Node(name="node1", private_ip="10.0.0.1", host_key="ssh-ed25519 AAAA"),))
    path = known_hosts(cluster)
    assert path == home / ".trainyard" / "c" / "known_hosts"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert "10.0.0.1 ssh-ed25519 AAAA\nnode1 ssh-ed25519 AAAA\n" in path.read_text()
    before = path.stat()
    assert known_hosts(cluster).stat().st_ino == before.st_ino
    write(path.parent / "ssh_config", config_text(cluster))
    forget("c")
    assert not path.parent.exists()
    forget("c")  # twice is no error


@pytest.mark.parametrize("name", ["", "..", "../evil", "a/b", "-x", "a b", "x" * 64, ".hidden", "a\nb"])
def test_a_clusters_name_is_no_way_out_of_the_operators_directory(name: str, home: Path) -> None:
    with pytest.raises(InventoryError, match="name = "):
        directory(name)


def test_what_plain_ssh_reads_follows_the_inventory(home: Path) -> None:
    """After `up` had made a node again, `ssh node1` met an alarm, as its old key was known."""
    inventory = home / "inventory.json"
    folder = home / ".trainyard" / "c"
    for address, key in (("10.0.0.2", "ssh-ed25519 AAAA"), ("10.0.0.1", "ssh-ed25519 BBBB")):
        cluster = SshCluster(name="c", nodes=(Node(name="node1", private_ip=address, role="head", host_key=key),))
        inventory.write_text(to_json(cluster))
        load("", str(inventory))
        if key.endswith("AAAA"):
            assert not folder.exists(), "nobody has asked for such files yet"
            known_hosts(cluster)
            write(folder / "ssh_config", config_text(cluster))
    assert "BBBB" in (folder / "known_hosts").read_text() and "AAAA" not in (folder / "known_hosts").read_text()
    assert "HostName 10.0.0.1" in (folder / "ssh_config").read_text()


def test_ssh_config_lets_plain_ssh_work(yard: sshd.Yard, home: Path) -> None:
    port = sshd.free_port()
    cluster = yard.cluster(*(yard.start(f"127.0.0.{i + 2}", port).node(f"node{i + 1}") for i in range(2)))
    inventory = home / "inventory.json"
    inventory.write_text(to_json(cluster))
    output = subprocess.run(
        [FAB, "ssh-config", "--inventory", inventory], capture_output=True, text=True, check=True
    ).stdout
    (include,) = [line.strip() for line in output.splitlines() if line.strip().startswith("Include")]
    assert output.splitlines()[-1].startswith("next: ssh node2")
    (home / ".ssh" / "config").write_text(f"{include}\n")
    for name in ("node2", "node2.yard"):
        # ssh takes the home directory from the password database, not from HOME: the file has to be named
        argv = ["ssh", "-F", str(home / ".ssh" / "config"), name, "echo $SSH_CONNECTION"]
        result = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert result.stdout.split()[2:] == ["127.0.0.3", str(port)], result.stderr


def test_bad_targets_are_one_line_and_exit_code_2(home: Path) -> None:
    good = SshCluster(name="c", nodes=(Node(name="node1", role="head", private_ip="10.0.0.1"),))
    cases = {
        "missing": None,
        "not-json": "{",
        "binary": b"\xff\xfe\x00",
        "newer": '{"schema": 99, "kind": "ssh"}',
        "kubernetes": '{"schema": 1, "kind": "kubernetes", "name": "k", "region": "r", "namespace": "n", "image": "i",'
        ' "workers": 1, "gpus_per_worker": 0}',
        "name": to_json(SshCluster(**{**good.__dict__, "name": "../up"})),
    }
    for name, text in cases.items():
        path = home / name
        if text is not None:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(Exit) as caught:
            load("", str(path))
        assert caught.value.code == 2
        message = caught.value.message or ""
        assert str(path) in message
        assert "\n" not in message
    with pytest.raises(Exit, match="no node 'node9' in c; there are: node1") as caught:
        choose(good, "node1,node9")
    assert caught.value.code == 2


def test_options_survive_a_shell(home: Path) -> None:
    """They are also put into a ProxyCommand, which a shell reads."""
    cluster = SshCluster(name="c", nodes=(Node(name="node1", private_ip="10.0.0.1"),), jump_host="10.9.9.9")
    (proxy,) = [option for option in options(cluster, cluster.head) if option.startswith("ProxyCommand=")]
    words = shlex.split(proxy.removeprefix("ProxyCommand="))
    assert words[0] == "ssh"
    assert words[-3:] == ["-W", "[%h]:%p", "10.9.9.9"]
    assert "StrictHostKeyChecking=yes" in words
