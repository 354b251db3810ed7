"""`fab wait`: what it says of a boot, the follower and the join as they run on a node, and all of it over SSH."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sshd
from invoke.exceptions import Exit

from fabfile.remote import ended
from fabfile.remote.fleet import Fleet
from fabfile.remote.join import join, make_blocks
from fabfile.verbs.wait import Progress, follow_boot, software
from infra.inventory import Node, SshCluster, to_json
from node import ssh_trust

FAB = Path(sys.executable).with_name("fab")
FOLLOW = Path(__file__).parents[2] / "node" / "boot.sh"
READY: dict[str, Any] = {
    "node": "node1",
    "mode": "node",
    "profile": "native",
    "versions": {"torch": "2.13.0"},
    "cpu": {"cores": 2, "amx": False, "avx512_bf16": True},
}
FAILED: dict[str, Any] = {
    "node": "node1",
    "mode": "node",
    "step": "torch",
    "reason": "no wheel for torch 2.13.0",
    "log": ["looking for torch", "ERROR: none found"],
}


def state(root: Path) -> Path:
    folder = root / "var/lib/trainyard"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def put(path: Path, record: object) -> None:
    """As the bootstrap does: whole or not at all."""
    path.with_suffix(".new").write_text(json.dumps(record, indent=1))
    path.with_suffix(".new").replace(path)


def event(root: Path, step: str, what: str, seconds: float | None = None) -> None:
    extra = {} if seconds is None else {"seconds": seconds}
    with (state(root) / "progress.jsonl").open("a") as file:
        file.write(json.dumps({"time": 1.0, "step": step, "state": what, **extra}) + "\n")


# --- what is said of a boot ----------------------------------------------------------------------------------------


@pytest.fixture
def progress() -> Progress:
    return Progress(Node(name="node1", private_ip="10.0.0.1"), began=100.0)


def test_a_boot_is_told_event_by_event(progress: Progress) -> None:
    said = [
        *progress.unreached("node1 (10.0.0.1:22): Connection refused", 100.1),
        *progress.answers(101.4),
        *progress.told('step {"time": 1, "step": "torch", "state": "start"}', 102.0),
        *progress.tick(103.0),
        *progress.tick(106.0),
        *progress.tick(107.0),
        *progress.told('step {"time": 9, "step": "torch", "state": "done", "seconds": 12.345}', 114.3),
        *progress.told("ready " + json.dumps(READY), 115.0),
    ]
    assert said == [
        "ssh answers (1.4 s)",
        "step torch …",
        "step torch … 12.3 s",
        "ready (15.0 s): torch 2.13.0, 2 cores, no AMX",
    ]
    assert progress.state == "ready"


def test_a_lost_connection_is_said_once(progress: Progress) -> None:
    progress.answers(101.0)
    assert progress.unreached("gone", 102.0) == ["connection lost, trying again: gone"]
    assert progress.unreached("gone", 103.0) == []
    assert progress.seen == "gone"


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("ready {half", "not JSON"),
        ("ready []", "not an object"),
        ("unreadable /var/lib/trainyard/ready.json", "cannot be read"),
        ('step {"step": "torch", "state": "start"}', "step torch has begun"),
    ],
)
def test_the_last_thing_seen_is_remembered(progress: Progress, line: str, seen: str) -> None:
    progress.answers(101.0)
    progress.told(line, 102.0)
    assert progress.state == "booting"
    assert seen in progress.seen


@pytest.mark.parametrize(
    ("change", "reason"), [({"mode": "bake"}, "has baked an image"), ({"node": "node7"}, "the record is of 'node7'")]
)
def test_a_record_that_is_not_this_nodes_is_a_failure(progress: Progress, change: dict[str, str], reason: str) -> None:
    progress.answers(101.0)
    assert progress.told("ready " + json.dumps({**READY, **change}), 102.0) == []
    assert progress.state == "failed"
    assert reason in progress.record["reason"]


def test_software_in_a_few_words() -> None:
    assert software(READY) == "torch 2.13.0, 2 cores, no AMX"
    assert software({"versions": {"torch": "2.8.0"}, "cpu": {"cores": 1, "amx": True}}) == "torch 2.8.0, 1 core, AMX"


# --- the follower, as it runs on a node ----------------------------------------------------------------------------


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    state(tmp_path)
    (tmp_path / "opt/trainyard/bootstrap").mkdir(parents=True)
    process = subprocess.Popen(
        ["bash", "--norc", FOLLOW],
        env={**os.environ, "TRAINYARD_PREFIX": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.wait()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def test_the_follower_tells_steps_as_they_come_and_ends_with_the_record(
    follower: subprocess.Popen[str], tmp_path: Path
) -> None:
    event(tmp_path, "names", "start")
    assert json.loads(line_of(follower).removeprefix("step "))["step"] == "names"
    with (state(tmp_path) / "progress.jsonl").open("a") as file:
        file.write('{"step": "half')  # a line that is being written is not told
        file.flush()
        time.sleep(0.5)
        file.write('", "state": "done"}\n')
    assert line_of(follower) == 'step {"step": "half", "state": "done"}'
    (state(tmp_path) / "progress.jsonl").unlink()  # the bootstrap begins again
    time.sleep(0.5)
    event(tmp_path, "again", "start")
    assert "again" in line_of(follower)
    event(tmp_path, "last", "done", 1.0)
    put(state(tmp_path) / "ready.json", READY)
    assert "last" in line_of(follower)
    word, _, record = line_of(follower).partition(" ")
    assert (word, json.loads(record)) == ("ready", READY)
    assert follower.wait(timeout=20) == 0


def test_the_follower_ends_with_its_reader(follower: subprocess.Popen[str]) -> None:
    assert follower.stdin is not None
    follower.stdin.close()
    assert follower.wait(timeout=20) == 0


def follow_once(root: Path) -> str:
    env = {**os.environ, "TRAINYARD_PREFIX": str(root)}
    return subprocess.run(["bash", FOLLOW], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout


def test_a_record_from_before_a_reboot_says_nothing_about_now(tmp_path: Path) -> None:
    put(state(tmp_path) / "ready.json", READY)
    event(tmp_path, "old", "start")
    assert follow_once(tmp_path).startswith("ready ")
    booted = tmp_path / "run/systemd/inaccessible/reg"
    booted.parent.mkdir(parents=True)
    time.sleep(0.02)
    booted.touch()
    assert follow_once(tmp_path) == ""
    time.sleep(0.02)
    put(state(tmp_path) / "failed.json", FAILED)
    assert follow_once(tmp_path).startswith("failed ")


# --- joining -------------------------------------------------------------------------------------------------------

NODES = tuple(Node(name=f"node{i}", private_ip=f"10.0.0.{i}") for i in (1, 2, 3))
SAID = {node.name: {"key": f"ssh-ed25519 KEY{node.name}", "port": "22", "digest": ""} for node in NODES}
HOST_KEYS = {node.name: f"ssh-ed25519 HOST{node.name}" for node in NODES}
BLOCKS = make_blocks(NODES, "trainyard", SAID, HOST_KEYS)
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

    fewer = make_blocks(NODES[:2], "trainyard", SAID, HOST_KEYS)
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


# --- all of it, over real SSH --------------------------------------------------------------------------------------


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


def test_ready_nodes_are_joined_once(cluster: tuple[SshCluster, list[sshd.Sshd]], tmp_path: Path) -> None:
    machines, servers = cluster
    be_ready(servers)
    (tmp_path / "inventory.json").write_text(to_json(machines))
    argv = [FAB, "wait", "--timeout", "20", "--inventory", tmp_path / "inventory.json"]
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
    said = caught.value.message
    assert said.splitlines()[:3] == [
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
    said = caught.value.message
    assert "2 of 3 nodes not ready after 1 s" in said
    assert "node2  last seen: step torch has begun" in said
    assert "node3  last seen: " in said
    assert "Connection refused" in said
    assert "console line 99" in said
    assert "node1" not in said


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
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("waiting for ")]
    assert 2 <= len(said) <= 6, said
    assert re.fullmatch(
        r"waiting for 2 of 3 nodes \(\d s\): node2: step torch has begun; node3: .*Connection refused", said[-1]
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
    said = caught.value.message.splitlines()
    assert said[:2] == ["1 of 3 nodes are gone", f"node3  {ended.WHY}"]
    assert said[-2:] == ["    last of node3", "next: fab up"]


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
