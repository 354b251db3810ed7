"""Commands on nodes over SSH: lines, exit codes, time limits, and what is left on the nodes: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import sshd
from polling import until

from fabfile.remote.command import LineSplitter
from fabfile.remote.fleet import Fleet
from infra.inventory import Node, to_json

FAB = Path(sys.executable).with_name("fab")


def alive(mark: str) -> int:
    """Processes `sleep <mark>`."""
    argv = ["pgrep", "-c", "-x", "-f", f"sleep {mark}"]
    return int(subprocess.run(argv, capture_output=True, text=True).stdout)


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
    until(lambda: alive(mark) == 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_runs_on_after_the_operator_is_gone(yard: sshd.Yard, tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, a closed terminal, even a killed fab: the command ends on the node, and what it started with it."""
    port = sshd.free_port()
    cluster = yard.cluster(*(yard.start(f"127.0.0.{i + 2}", port).node(f"node{i + 1}") for i in range(2)))
    (tmp_path / "inventory.json").write_text(to_json(cluster))
    mark = f"86400.{os.getpid()}{number:d}"
    argv: list[str | Path] = [FAB, "run", f"sleep {mark} & sleep {mark}", "--inventory", tmp_path / "inventory.json"]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    until(lambda: alive(mark) == 4)
    process.send_signal(number)
    _, output = process.communicate(timeout=20)
    if number == signal.SIGINT:
        assert (process.returncode, output) == (130, "interrupted\n")
    until(lambda: alive(mark) == 0)


def test_kept_connections_are_used_again_and_made_again(yard: sshd.Yard) -> None:
    before = threading.active_count()  # other tests of the same worker may have left some
    server = yard.start("127.0.0.2", sshd.free_port())
    cluster = yard.cluster(server.node("node1"))
    with Fleet(cluster) as fleet:
        for _ in range(3):
            assert fleet.run("true")["node1"].ok
        assert server.log.count("Accepted publickey") == 1
        fleet.connection(cluster.head).transport.close()
        assert fleet.run("true")["node1"].ok
        assert server.log.count("Accepted publickey") == 2
    assert threading.active_count() < before + 5


def test_lines_are_whole_whatever_the_pieces() -> None:
    text = "grün\r\nzwei\n\nohne Ende"
    for size in (1, 2, 3, 100):
        got: list[str] = []
        lines = LineSplitter(got.append)
        data = text.encode()
        for start in range(0, len(data), size):
            lines.feed(data[start : start + size])
        lines.feed(b"", final=True)
        assert got == ["grün", "zwei", "", "ohne Ende"]
        assert lines.text == text
