"""Programs in pods: their streams and exit codes over the API's WebSocket, and what becomes of a connection that is
slow, closes early or lies. The API is a server of the test's own; its programs are processes of this machine."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kube_cluster import Kube, deployed, served
from kube_streams import Streams

from fabfile.backends.kubernetes import channel as channels
from fabfile.backends.kubernetes import view
from fabfile.backends.kubernetes.api import Api
from fabfile.backends.kubernetes.channel import ExecChannel, exit_code
from fabfile.backends.kubernetes.head_pod import HeadPods
from fabfile.backends.kubernetes.wire import Broken
from fabfile.remote import keepalive
from fabfile.remote.command import follow, last_words
from infra.inventory import Node


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[Kube]:
    with served(tmp_path) as server:
        yield server


@pytest.fixture
def head(kube: Kube) -> Iterator[HeadPods]:
    api = Api(kube.cluster)
    with HeadPods(api, kube.cluster, view.of(kube.cluster)) as found:
        yield found
    api.close()


def node(head: HeadPods) -> Node:
    return head.cluster.head


def session(head: HeadPods) -> ExecChannel:
    return head.connection(node(head)).create_session()


def played(kube: Kube, head: HeadPods, play: object) -> str:
    """Why a program whose other end does this is no success."""
    kube.play = play  # type: ignore[assignment]
    with session(head) as channel:
        channel.exec_command("true")
        return follow("head", channel, timeout=10).why


def test_a_program_has_its_streams_its_exit_code_and_the_home_directory(kube: Kube, head: HeadPods) -> None:
    result = head.run("pwd; echo wrong >&2; exit 3", timeout=20)["head"]
    assert (result.stdout, result.stderr, result.exited, result.reason) == (f"{kube.home}\n", "wrong\n", 3, "")
    assert head.run("true", timeout=20)["head"].ok


def test_stdin_goes_there_ends_and_much_output_comes_back_whole(head: HeadPods) -> None:
    data = bytes(range(256)) * 12_000  # 3 MB: many messages, more than is kept unread, more than a TLS record each
    with session(head) as channel:
        channel.settimeout(20)
        channel.exec_command("cat")
        sender = threading.Thread(target=lambda: (channel.sendall(data), channel.shutdown_write()))
        sender.start()
        digest, size = hashlib.sha256(), 0
        while piece := channel.recv(1 << 16):
            digest.update(piece)
            size += len(piece)
        sender.join()
        assert channel.recv_exit_status() == 0
    assert size == len(data) and digest.digest() == hashlib.sha256(data).digest()


def test_output_that_nobody_reads_stays_in_the_pod(kube: Kube, head: HeadPods, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_UNREAD", 1 << 16)
    with session(head) as channel:
        channel.exec_command("head -c 50000000 /dev/zero; echo end >&2")
        time.sleep(0.5)
        assert len(channel._out[channels.STDOUT]) < 1 << 20
        total = 0
        while piece := channel.recv(1 << 20):
            total += len(piece)
        assert total == 50_000_000 and last_words(channel) == "end"


def test_a_command_longer_than_a_url_arrives(kube: Kube, head: HeadPods) -> None:
    words = "x" * 70_000
    with session(head) as channel:
        channel.settimeout(20)
        channel.exec_command(f"printf %s {words} | wc -c; cat; exit 5")
        channel.sendall(b"and its stdin\n")
        channel.shutdown_write()
        assert channel.makefile("r").read().split("\n") == ["70000", "and its stdin", ""]
        assert channel.recv_exit_status() == 5
    assert max(len(word) for argv in kube.execs for word in argv) < 10_000


def test_a_closed_connection_ends_the_guarded_program(kube: Kube, head: HeadPods, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    running = threading.Thread(target=head.run, args=(f"echo $$ >{mark}; sleep 60",))
    running.start()
    while not mark.exists() or not mark.read_text():
        time.sleep(0.02)
    head.close()
    running.join(10)
    assert not running.is_alive()
    pid = Path(f"/proc/{mark.read_text().strip()}")
    deadline = time.monotonic() + 10
    while pid.exists():
        assert time.monotonic() < deadline, "the program outlives its connection"
        time.sleep(0.05)


def test_a_program_may_close_its_output_a_little_before_it_ends(head: HeadPods) -> None:
    """As every program of coreutils does. The kubelet then ends its stdin, which is no sign of a lost connection."""
    assert head.run("exec >&- 2>&-; sleep 0.2; exit 4", timeout=20)["head"].exited == 4


def test_a_slow_program_is_waited_for_and_given_up_at_the_limit(head: HeadPods) -> None:
    assert head.run("sleep 0.7; echo late", timeout=20)["head"].stdout == "late\n"
    started = time.monotonic()
    assert head.run("sleep 30", timeout=0.5)["head"].why == "head: not finished after 0.5 s"
    assert time.monotonic() - started < 5
    with session(head) as channel:
        channel.settimeout(0.2)
        channel.exec_command("sleep 5")
        with pytest.raises(TimeoutError):
            channel.recv(1)


def test_messages_in_pieces_and_one_that_comes_with_the_upgrade(kube: Kube, head: HeadPods) -> None:
    def play(streams: Streams) -> None:
        streams.send(1, b"", finished=True)
        streams.send(1, b"one ", finished=False)
        from wsproto.events import BytesMessage

        streams.raw(streams.frames.send(BytesMessage(data=b"two", message_finished=True)))
        streams.end(7)

    kube.play = play
    with session(head) as channel:
        channel.exec_command("true")
        result = follow("head", channel, timeout=10)
    assert (result.stdout, result.exited) == ("one two", 7)


def failure(message: str) -> bytes:
    return json.dumps({"status": "Failure", "reason": "InternalError", "message": message}).encode()


@pytest.mark.parametrize(
    ("play", "why"),
    [
        (lambda s: s.sock.close(), "head: the connection was closed while the command ran"),
        (lambda s: s.raw(b"\x88\x02\x03\xe9"), "head: the connection was closed while"),
        (lambda s: s.send(3, b"{"), "head: the API's account of the program's end cannot be read: b'{' while"),
        (lambda s: s.send(3, b'{"status": "Failure", "reason": "NonZeroExitCode"}'), "cannot be read"),
        (lambda s: s.send(3, failure("no such\ncontainer")), "the program was not run to its end: no such container"),
        (
            lambda s: s.send(3, failure('oh: error sending request: Post "https://h:1/exec?c=a": dial tcp')),
            "the program was not run to its end: oh: dial tcp",
        ),
        (lambda s: s.send(3, b" " * 70_000, finished=False), "account of the program's end is too long"),
        (lambda s: s.send(9, b"x"), "the API sent something on stream 9, which does not exist"),
        (lambda s: s.raw(b"\x82\x00"), "the API sent a message of no stream"),
        (lambda s: s.raw(b"\x81\x02hi"), "the API sent text where bytes belong"),
        (lambda s: s.raw(b"\xc2\x01a"), "the connection was closed with code 1002"),
    ],
)
def test_a_connection_that_ends_early_or_lies_is_no_success(kube: Kube, head: HeadPods, play: object, why: str) -> None:
    assert why in played(kube, head, play)


def test_silence_is_asked_about_and_then_given_up(kube: Kube, head: HeadPods, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepalive, "INTERVAL", 0.2)
    monkeypatch.setattr(keepalive, "DEAD", 1.5)
    monkeypatch.setattr(channels, "_POLL", 0.1)
    assert head.run("sleep 2; echo here", timeout=20)["head"].stdout == "here\n", "pongs are a sign of life"
    assert "no sign of life for 1.5 s" in played(kube, head, lambda streams: time.sleep(5))


def test_exit_codes() -> None:
    assert exit_code(b'{"status": "Success"}') == 0
    for wrong in (b"", b"[]", b"1", b'{"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": []}}'):
        with pytest.raises(Broken, match="cannot be read"):
            exit_code(wrong)


def test_a_head_pod_that_is_replaced_is_found_again(kube: Kube, head: HeadPods) -> None:
    assert head.run("echo 1", timeout=20)["head"].ok
    kube.refuse("trainyard-head-x/exec", 404, 'pods "trainyard-head-x" not found', details={"name": "trainyard-head-x"})
    assert "not found" in head.run("echo 2", timeout=20)["head"].why
    one = kube.objects.pop(("Pod", "trainyard-head-x"))
    kube.put({**one, "metadata": {**one["metadata"], "name": "trainyard-head-y"}})
    assert head.run("echo 3", timeout=20)["head"].stdout == "3\n"
    kube.play = lambda streams: streams.send(3, failure("its machine does not answer"))
    assert "its machine does not answer" in head.run("echo 4", timeout=20)["head"].why
    kube.play = None
    dead = kube.objects[("Pod", "trainyard-head-y")]
    dead["status"]["conditions"][0]["status"] = "False"  # as Kubernetes marks the pods of a dead machine
    kube.refusals.clear()
    deployed(kube, kube.objects[("Deployment", "trainyard-head")])
    assert head.run("echo 5", timeout=20)["head"].stdout == "5\n"
    assert head.connection(node(head)).name == "trainyard-head-x"
    assert len([one for one in kube.applied if one["kind"] == "Deployment"]) == 1, "the same Deployment is left alone"
