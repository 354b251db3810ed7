"""SSH is strict: shown against real OpenSSH servers."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sshd
from invoke.exceptions import Exit

from fabfile.remote.command import Lines
from fabfile.remote.connection import connect
from fabfile.remote.fleet import Fleet
from fabfile.remote.known_hosts import (
    HostKeyMismatch,
    HostKeyUnknown,
    SshError,
    directory,
    fingerprint,
    forget,
    known_hosts,
    write,
)
from fabfile.remote.openssh import config_text, jump_node, options
from fabfile.targets import choose, load
from infra.inventory import InventoryError, Node, SshCluster, to_json

FAB = Path(sys.executable).with_name("fab")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "ho me"  # paths with spaces are paths too
    (folder / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


@pytest.fixture
def yard(home: Path, tmp_path: Path) -> Iterator[sshd.Yard]:
    sshd.require()
    yard = sshd.Yard(tmp_path, [])
    sshd.keygen(yard.identity)
    yield yard
    yard.stop()


def openssh(cluster: SshCluster, node: Node, command: str) -> subprocess.CompletedProcess[str]:
    argv = ["ssh", *options(cluster, node), node.address, command]
    return subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=20)


def alive(mark: str) -> int:
    """Processes `sleep <mark>`."""
    argv = ["pgrep", "-c", "-x", "-f", f"sleep {mark}"]
    return int(subprocess.run(argv, capture_output=True, text=True).stdout)


def eventually(said: object, expected: object, seconds: float = 20.0) -> None:
    assert callable(said)
    deadline = time.monotonic() + seconds
    while said() != expected and time.monotonic() < deadline:
        time.sleep(0.02)
    assert said() == expected


# --- host keys -----------------------------------------------------------------------------------------------------


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
    said = str(caught.value)
    blobs = [key.split()[1] for key in (real_key, impostor.host_key)]
    for expected in ("node1", f"127.0.0.2:{impostor.port}", *(_fingerprint(blob) for blob in blobs)):
        assert expected in said
    assert "\n" not in said

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


# --- the jump host -------------------------------------------------------------------------------------------------


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
    said = subprocess.run(["ssh", "-F", config, "node3", "echo hello"], capture_output=True, text=True, timeout=20)
    assert said.stdout == "hello\n", said.stderr


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


# --- run_all -------------------------------------------------------------------------------------------------------


def test_every_node_has_a_result_and_each_line_its_node_and_stream(yard: sshd.Yard) -> None:
    port = sshd.free_port()
    nodes = [yard.start(f"127.0.0.{i + 2}", port).node(f"node{i + 1}") for i in range(2)]
    cluster = yard.cluster(
        *nodes, Node(name="node3", private_ip="127.0.0.77", ssh_port=port, host_key=nodes[0].host_key)
    )
    lines: list[tuple[str, str, str]] = []
    results = sshd.run_all(
        cluster, "echo out; echo err >&2; printf tail; exit 3", on_line=lambda *line: lines.append(line)
    )
    assert list(results) == ["node1", "node2", "node3"]
    for name in ("node1", "node2"):
        assert (results[name].exited, results[name].stdout, results[name].stderr) == (3, "out\ntail", "err\n")
        assert [line[1:] for line in lines if line[0] == name and line[1] == "stdout"] == [
            ("stdout", "out"),
            ("stdout", "tail"),
        ]
        assert (name, "stderr", "err") in lines
    assert results["node3"].exited == 255
    assert results["node3"].reason == f"node3 (127.0.0.77:{port}): Connection refused"


def test_lines_come_while_the_command_runs(yard: sshd.Yard) -> None:
    server = yard.start("127.0.0.2", sshd.free_port())
    times: list[float] = []
    sshd.run_all(
        yard.cluster(server.node("node1")),
        "echo a; sleep 0.5; echo b",
        on_line=lambda *_: times.append(time.monotonic()),
    )
    assert times[1] - times[0] > 0.4


def test_a_command_without_output_and_one_that_leaves_something_behind(yard: sshd.Yard) -> None:
    server = yard.start("127.0.0.2", sshd.free_port())
    cluster = yard.cluster(server.node("node1"))
    assert sshd.run_all(cluster, "exec >&- 2>&-; sleep 0.3; exit 5")["node1"].exited == 5
    began = time.monotonic()
    assert sshd.run_all(cluster, "sleep 9 & echo started")["node1"].stdout == "started\n"
    assert time.monotonic() - began < 8
    assert sshd.run_all(cluster, "pkill -x -f 'sleep 9'; kill -9 $$")["node1"].exited == 137
    big = sshd.run_all(cluster, "head -c 3000000 /dev/zero | tr '\\0' 'ä'")["node1"]
    assert len(big.stdout.encode()) >= 3_000_000


def test_a_command_that_is_stopped_has_not_ended(yard: sshd.Yard) -> None:
    """SIGSTOP, or a debugger: it goes on later, and its own exit code counts."""
    cluster = yard.cluster(yard.start("127.0.0.2", sshd.free_port()).node("node1"))
    command = "echo here; (sleep 1; kill -CONT $$) & kill -STOP $$; echo there; exit 3"
    result = sshd.run_all(cluster, command)["node1"]
    assert (result.exited, result.stdout) == (3, "here\nthere\n")


def test_a_timeout_ends_the_command_on_the_node(yard: sshd.Yard) -> None:
    server = yard.start("127.0.0.2", sshd.free_port())
    mark = f"86400.{os.getpid()}"
    result = sshd.run_all(yard.cluster(server.node("node1")), f"sleep {mark} & sleep {mark}", timeout=0.5)["node1"]
    assert (result.exited, result.reason) == (124, "node1: not finished after 0.5 s")
    eventually(lambda: alive(mark), 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_runs_on_after_the_operator_is_gone(yard: sshd.Yard, tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, a closed terminal, even a killed fab: the command ends on the node, and what it started with it."""
    port = sshd.free_port()
    cluster = yard.cluster(*(yard.start(f"127.0.0.{i + 2}", port).node(f"node{i + 1}") for i in range(2)))
    (tmp_path / "inventory.json").write_text(to_json(cluster))
    mark = f"86400.{os.getpid()}{number:d}"
    argv = [FAB, "run", f"sleep {mark} & sleep {mark}", "--inventory", tmp_path / "inventory.json"]
    # As in a shell's foreground, whatever started the tests may ignore.
    process = subprocess.Popen(
        argv,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    eventually(lambda: alive(mark), 4)
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    if number == signal.SIGINT:
        assert (process.returncode, said) == (130, "interrupted\n")
    eventually(lambda: alive(mark), 0)


def test_kept_connections_are_used_again_and_made_again(yard: sshd.Yard) -> None:
    server = yard.start("127.0.0.2", sshd.free_port())
    cluster = yard.cluster(server.node("node1"))
    with Fleet(cluster) as fleet:
        for _ in range(3):
            assert fleet.run("true")["node1"].ok
        assert server.log.count("Accepted publickey") == 1
        fleet.connection(cluster.head).transport.close()
        assert fleet.run("true")["node1"].ok
        assert server.log.count("Accepted publickey") == 2
    assert threading.active_count() < 10


# --- the operator's key and files ----------------------------------------------------------------------------------


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
        eventually((tmp_path / "agent").exists, True)
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
    said = subprocess.run(
        [FAB, "ssh-config", "--inventory", inventory], capture_output=True, text=True, check=True
    ).stdout
    (include,) = [line.strip() for line in said.splitlines() if line.strip().startswith("Include")]
    assert said.splitlines()[-1].startswith("next: ssh node2")
    (home / ".ssh" / "config").write_text(f"{include}\n")
    for name in ("node2", "node2.yard"):
        # ssh takes the home directory from the password database, not from HOME: the file has to be named
        argv = ["ssh", "-F", str(home / ".ssh" / "config"), name, "echo $SSH_CONNECTION"]
        result = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert result.stdout.split()[2:] == ["127.0.0.3", str(port)], result.stderr


# --- small things --------------------------------------------------------------------------------------------------


def test_lines_are_whole_whatever_the_pieces() -> None:
    text = "grün\r\nzwei\n\nohne Ende"
    for size in (1, 2, 3, 100):
        got: list[str] = []
        lines = Lines(got.append)
        data = text.encode()
        for start in range(0, len(data), size):
            lines.feed(data[start : start + size])
        lines.feed(b"", final=True)
        assert got == ["grün", "zwei", "", "ohne Ende"]
        assert lines.text == text


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
        assert str(path) in caught.value.message
        assert "\n" not in caught.value.message
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
