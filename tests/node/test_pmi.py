"""MPI's processes find each other by our server of PMI-1, as they do in pods."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from node.job import pmi

CLIENT = """
import os, socket
lines = socket.socket(fileno=int(os.environ["PMI_FD"])).makefile("rw", newline="\\n")
rank, size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
def ask(line):
    lines.write(line + "\\n"); lines.flush()
    return dict(word.partition("=")[::2] for word in lines.readline().split())
assert ask("cmd=init pmi_version=1 pmi_subversion=1")["rc"] == "0"
name = ask("cmd=get_my_kvsname")["kvsname"]
assert ask(f"cmd=get kvsname={name} key=card-{rank}")["rc"] == "-1"
assert ask(f"cmd=put kvsname={name} key=card-{rank} value=tcp#{rank}$")["rc"] == "0"
for _ in range(2):
    assert ask("cmd=barrier_in")["cmd"] == "barrier_out"
print([ask(f"cmd=get kvsname={name} key=card-{other}")["value"] for other in range(size)])
ask("cmd=finalize")
"""


@pytest.fixture
def server() -> Iterator[pmi.Server]:
    made = pmi.Server("127.0.0.1", 3)
    yield made
    made.close()


def test_every_process_finds_what_the_others_have_put_up(server: pmi.Server) -> None:
    started = []
    for rank in range(3):
        connection, variables = pmi.join(server.where, rank, 3)
        with connection:
            argv = [sys.executable, "-c", CLIENT]
            started.append(subprocess.Popen(argv, env=variables, close_fds=False, stdout=subprocess.PIPE, text=True))
    for process in started:
        assert process.communicate(timeout=30)[0] == "['tcp#0$', 'tcp#1$', 'tcp#2$']\n" and process.returncode == 0


def test_who_does_not_know_the_token_is_not_listened_to(server: pmi.Server) -> None:
    address, port, _ = server.where.split()
    with socket.create_connection((address, int(port)), timeout=10) as stranger:
        stranger.sendall(b"wrong\ncmd=get_my_kvsname\n")
        assert stranger.recv(100) == b""


def test_the_end_of_an_attempt_ends_a_barrier_that_others_wait_at(server: pmi.Server) -> None:
    connection, _ = pmi.join(server.where, 0, 3)
    with connection:
        connection.settimeout(10)
        connection.sendall(b"cmd=get_appnum\n")
        assert connection.recv(100) == b"cmd=appnum appnum=0\n", "it is served"
        connection.sendall(b"cmd=barrier_in\n")
        server.close()
        assert connection.recv(100) == b""
