"""A network that goes without a word ends every verb, naming the node. Real sshds whose processes are stopped: the
kernel still acknowledges what is sent to them, so TCP sees nothing wrong for ever."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sshd
from invoke.exceptions import Exit

from fabfile.backends.ssh import head as heads
from fabfile.backends.ssh.head import Head
from fabfile.remote import connection, keepalive
from fabfile.remote.command import Result
from fabfile.remote.fleet import Fleet
from fabfile.remote.openssh import options
from fabfile.token_sets import token_set, upload

DEAD = 2.0
LIMIT = 12.0
"""Seconds in which a verb must have ended; the tests' machine may be busy."""


class Frozen:
    """sshds that stop answering, and go on when the test is over."""

    def __init__(self) -> None:
        self._stopped: list[int] = []

    def freeze(self, server: sshd.Sshd) -> None:
        for pid in reversed(server.processes()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self._stopped.append(pid)

    def after(self, seconds: float, server: sshd.Sshd) -> None:
        threading.Timer(seconds, self.freeze, [server]).start()

    def thaw(self) -> None:
        for pid in self._stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.fixture
def ice(monkeypatch: pytest.MonkeyPatch) -> Iterator[Frozen]:
    monkeypatch.setattr(keepalive, "INTERVAL", 0.3)
    monkeypatch.setattr(keepalive, "DEAD", DEAD)
    made = Frozen()
    yield made
    made.thaw()


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ice: Frozen) -> Iterator[sshd.Yard]:
    sshd.require()
    monkeypatch.setenv("HOME", str(tmp_path))
    made = sshd.Yard(tmp_path, [])
    sshd.keygen(made.identity)
    yield made
    ice.thaw()
    made.stop()


def start(yard: sshd.Yard, address: str = "127.0.0.2") -> sshd.Sshd:
    return yard.start(address, sshd.free_port(address))


def test_the_limits_are_those_that_ssh_is_told() -> None:
    assert (keepalive.INTERVAL, keepalive.DEAD) == (15.0, 60.0)


def test_a_silent_command_lives_as_long_as_its_node(yard: sshd.Yard) -> None:
    """Nothing is printed for longer than the limit: the answers to our questions are life enough."""
    cluster = yard.cluster(start(yard).node("node1"))
    assert sshd.run_all(cluster, f"sleep {DEAD * 2}; echo done")["node1"].stdout == "done\n"


def test_a_frozen_node_ends_a_command_and_the_others_are_not_in_its_way(yard: sshd.Yard, ice: Frozen) -> None:
    one, two = start(yard), start(yard, "127.0.0.3")

    def freeze(node: str) -> None:
        if node == "node2":
            ice.freeze(two)

    cluster = yard.cluster(one.node("node1"), two.node("node2"))
    began = time.monotonic()
    results = sshd.run_all(cluster, "echo up; sleep 2; echo here", on_line=lambda node, *_: freeze(node))
    assert results["node1"].stdout == "up\nhere\n"
    assert results["node2"].reason == f"node2: no sign of life for {DEAD:g} s while the command ran"
    assert time.monotonic() - began < LIMIT


def test_a_frozen_node_behind_a_jump_host_is_noticed(yard: sshd.Yard, ice: Frozen) -> None:
    jump, node = start(yard), start(yard, "127.0.0.3")
    cluster = yard.cluster(jump.node("node1"), node.node("node2"), jump_host=f"{jump.address}:{jump.port}")
    ice.after(1.5, node)
    began = time.monotonic()
    results = sshd.run_all(cluster, "sleep 60", nodes=["node2"])
    assert "node2: no sign of life" in results["node2"].reason
    assert time.monotonic() - began < LIMIT


def test_a_frozen_jump_host_is_noticed(yard: sshd.Yard, ice: Frozen) -> None:
    jump, node = start(yard), start(yard, "127.0.0.3")
    cluster = yard.cluster(jump.node("node1"), node.node("node2"), jump_host=f"{jump.address}:{jump.port}")
    ice.after(1.5, jump)
    began = time.monotonic()
    results = sshd.run_all(cluster, "sleep 60", nodes=["node2"])
    assert results["node2"].exited == 255 and "node2" in results["node2"].reason
    assert time.monotonic() - began < LIMIT


def streamed(fleet: Fleet) -> None:
    """As `fab fetch` and `fab sample` read."""
    last = [*Head(fleet, "/code").output("yes | head -c 1000; sleep 600", quiet=600.0)][-1]
    assert isinstance(last, Result)
    raise Exit(last.reason, code=1)


def stepped(fleet: Fleet) -> None:
    """As `fab prepare` and `fab data` work."""
    token_set.run(fleet, fleet.cluster.nodes, "echo began; sleep 600")


def sent(fleet: Fleet, tmp_path: Path) -> None:
    """As `fab data --from` sends: more than all buffers on the way hold, to a program that takes nothing."""
    file = tmp_path / "train.bin"
    with file.open("wb") as big:
        big.truncate(256 << 20)
    upload._send(fleet, file, "taken")


def asked(fleet: Fleet) -> None:
    head = Head(fleet, "/code")
    head.run("sleep 600", timeout=500)
    raise Exit(head.run("sleep 600", timeout=500).why, code=1)


@pytest.mark.parametrize("what", ["streamed", "stepped", "sent", "asked"])
def test_each_way_of_working_ends(
    what: str,
    yard: sshd.Yard,
    ice: Frozen,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways: dict[str, Callable[[Fleet], None]] = {
        "streamed": streamed,
        "stepped": stepped,
        "sent": lambda fleet: sent(fleet, tmp_path),
        "asked": asked,
    }
    server = start(yard)
    cluster = yard.cluster(server.node("node1"))
    with Fleet(cluster, timeout=2) as fleet:
        fleet.connection(cluster.head)
        monkeypatch.setattr(connection, "_HANDSHAKE_SECONDS", 3.0)  # of a second connection, to a node that is frozen
        ice.after(0.2 if what == "sent" else 1.0, server)
        began = time.monotonic()
        with pytest.raises(Exit) as end:
            ways[what](fleet)
    _, err = capsys.readouterr()
    assert end.value.code == 1 and "node1" in f"{end.value}{err}"
    assert time.monotonic() - began < LIMIT


def test_a_command_that_says_nothing_ends_after_its_time(yard: sshd.Yard) -> None:
    cluster = yard.cluster(start(yard).node("node1"))
    with Fleet(cluster) as fleet:
        last = [*Head(fleet, "/code").output("echo one; sleep 600", quiet=0.5)][-1]
        assert isinstance(last, Result) and last.reason == "node1: silent for 0.5 s"
        assert fleet.run("sleep 600", quiet=0.5)["node1"].reason == "node1: silent for 0.5 s"


def test_an_answer_that_is_no_json_is_one_line(yard: sshd.Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = yard.cluster(start(yard).node("node1"))
    with Fleet(cluster) as fleet:
        head = Head(fleet, "/code")
        monkeypatch.setattr(
            heads.Head, "start", lambda self, *argv: _started(fleet, "printf '\\033[2Jnot json'; exit 0")
        )
        with pytest.raises(Exit, match=r"node1: jobs: its answer cannot be read: '\\x1b\[2Jnot json'"):
            head.ask("jobs")


def _started(fleet: Fleet, command: str) -> object:
    channel = fleet.connection(fleet.cluster.head).create_session()
    channel.exec_command(command)
    return channel


def test_openssh_is_told_the_same(yard: sshd.Yard) -> None:
    cluster = yard.cluster(start(yard).node("node1"))
    found = options(cluster, cluster.head)
    assert "ServerAliveInterval=15" in found and "ServerAliveCountMax=4" in found
