"""`fab tunnel`: a port of a node, over a real sshd or a program in a pod, and what becomes of it when that breaks."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sshd
from forwarded import Watched, end_sessions, fails, get
from http_server import Answer, serve
from invoke.context import Context
from invoke.exceptions import Exit
from kube_cluster import pod, served
from polling import until

from fabfile import output
from fabfile.tunnel import ports
from fabfile.verbs.tunnel import tunnel
from infra.inventory import to_json

LARGE = os.urandom(3_000_000)


@pytest.fixture
def port() -> Iterator[int]:
    """The port on which something listens, on the node's loopback."""
    with serve(lambda asked: Answer(body=LARGE if asked.path == "/large" else b"here")) as server:
        yield int(server.url.rpartition(":")[2].strip("/"))


@pytest.fixture
def inventory(yard: sshd.Yard, tmp_path: Path) -> Path:
    nodes = [yard.start(f"127.0.0.{n + 1}", sshd.free_port()).node(f"node{n}") for n in (1, 2)]
    (tmp_path / "nodes.json").write_text(to_json(yard.cluster(*nodes)))
    return tmp_path / "nodes.json"


def test_a_port_of_a_node_is_reached_and_closed_by_ctrl_c(
    inventory: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    addresses = []

    def use(address: str) -> None:
        addresses.append(address)
        assert get(address) == b"here"
        several = [threading.Thread(target=lambda: sizes.append(get(address, "/large") == LARGE)) for _ in range(4)]
        for thread in several:
            thread.start()
        for thread in several:
            thread.join(120)  # 12 MB through paramiko: under load that takes long, and is not what is tested
        assert sizes == [True] * 4

    sizes: list[bool] = []
    out = Watched(capsys, use).run(str(port), node="node2", inventory=str(inventory))
    (address,) = addresses
    assert address.startswith("127.0.0.1:") and not address.endswith(f":{port}"), "the port itself is taken here"
    assert out.splitlines() == [
        f"http://{address} is port {port} of node2; Ctrl-C ends it",
        f"{address} is closed",
    ]
    with pytest.raises(urllib.error.URLError):
        get(address)


def test_a_lost_connection_is_made_anew(
    inventory: Path, port: int, yard: sshd.Yard, capsys: pytest.CaptureFixture[str]
) -> None:
    def use(address: str) -> None:
        assert get(address) == b"here"
        end_sessions(yard.servers[0])
        assert get(address) == b"here"

    Watched(capsys, use).run(str(port), inventory=str(inventory))


def test_a_node_that_goes_and_comes_back_is_said(
    inventory: Path, port: int, yard: sshd.Yard, capsys: pytest.CaptureFixture[str]
) -> None:
    server = yard.servers[0]

    def use(address: str) -> None:
        end_sessions(server)
        server.stop()
        until(lambda: fails(address), 20)
        watched.until_said("the next request tries again")
        again = [str(sshd.SSHD), "-D", "-f", str(server.folder / "config"), "-E", str(server.folder / "log")]
        server.process = subprocess.Popen(again, stdin=subprocess.DEVNULL)
        until(lambda: not fails(address), 20)
        watched.until_said(f"node1: port {port} answers")

    watched = Watched(capsys, use)
    watched.run(str(port), inventory=str(inventory))


def test_a_port_where_nothing_listens_is_said_and_tried_again(
    inventory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = sshd.free_port()

    def use(address: str) -> None:
        assert fails(address) and fails(address)
        watched.until_said(f"node1: nothing listens on port {empty} there")
        with serve(lambda _asked: Answer(body=b"here")) as server, moved(server.url, empty):
            until(lambda: not fails(address), 20)

    watched = Watched(capsys, use)
    out = watched.run(str(empty), local=sshd.free_port(), inventory=str(inventory))
    assert out.count("nothing listens") == 1, "a browser asks many times a second"


@contextmanager
def moved(url: str, port: int) -> Iterator[None]:
    """What answers at `url`, on another port, too; on the IPv6 loopback alone where there is one."""
    target = int(url.rpartition(":")[2].strip("/"))
    with socket.create_server(("127.0.0.1", port)) as listener:

        def one() -> None:
            with listener.accept()[0] as client, socket.create_connection(("127.0.0.1", target)) as there:
                there.sendall(client.recv(1 << 16))
                while data := there.recv(1 << 16):
                    client.sendall(data)

        thread = threading.Thread(target=one, daemon=True)
        thread.start()
        yield


def test_a_port_of_a_pod_is_reached_by_a_program_in_it(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "_target", [""])
    with served(tmp_path) as kube:
        (tmp_path / "kube.json").write_text(to_json(kube.cluster))
        kube.put(pod("prog-1-worker-0", "prog-1", phase="Running"))
        kube.put(pod("prog-1-worker-1", "prog-1", phase="Pending"))

        def use(address: str) -> None:
            assert get(address) == b"here" and get(address, "/large") == LARGE

        for node in ("", "prog-1-worker-0"):
            out = Watched(capsys, use).run(str(port), node=node, inventory=str(tmp_path / "kube.json"))
            assert f"is port {port} of {node or 'head'}" in out
        empty = sshd.free_port()

        def nothing(address: str) -> None:
            assert fails(address)
            watched.until_said(f"head: nothing listens on port {empty} there: Connection refused")

        watched = Watched(capsys, nothing)
        watched.run(str(empty), local=sshd.free_port(), inventory=str(tmp_path / "kube.json"))
        for node in ("prog-1-worker-1", "none"):
            with pytest.raises(Exit, match=rf"no pod '{node}' of a job runs; there are: prog-1-worker-0") as caught:
                tunnel.body(Context(), "80", node=node, inventory=str(tmp_path / "kube.json"))
            assert caught.value.code == 2


@pytest.mark.parametrize("text", ["0", "65536", "-1", "", "80:80", "1e3", "²", "9" * 50, "http"])
def test_a_port_that_is_none_is_one_line(text: str) -> None:
    with pytest.raises(Exit) as caught:
        ports.number(text)
    assert caught.value.code == 2 and str(caught.value.message).startswith(
        f"port {text!r}: must be from 1 to 65535, or"
    )


def test_names_stand_for_ports() -> None:
    assert (ports.number("TensorBoard"), ports.number("jupyter"), ports.number("65535")) == (6006, 8888, 65535)
    with pytest.raises(Exit, match=r"did you mean jupyter\?"):
        ports.number("jupiter")


def test_bad_input_is_one_line(inventory: Path, port: int) -> None:
    for node, line in {"node9": "node9", "node1,node2": "one node is needed; there are: node1, node2"}.items():
        with pytest.raises(Exit, match=line) as caught:
            tunnel.body(Context(), "80", node=node, inventory=str(inventory))
        assert caught.value.code == 2
    with pytest.raises(Exit, match="port '70000'") as caught:
        tunnel.body(Context(), "80", local=70000, inventory=str(inventory))
    assert caught.value.code == 2
    with pytest.raises(Exit, match=f"port {port} of this machine: Address already in use: choose another") as caught:
        tunnel.body(Context(), "80", local=port, inventory=str(inventory))
    assert caught.value.code == 1


def test_a_node_that_is_not_reached_is_said_at_once(inventory: Path, yard: sshd.Yard) -> None:
    yard.servers[0].stop()
    with pytest.raises(Exception, match=r"node1 \(127.0.0.2:\d+\): Connection refused"):
        tunnel.body(Context(), "80", inventory=str(inventory))
