"""A node that lies to its operator: what it answers runs, reads and sends nothing of the operator's machine."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import sshd
from http_server import Answer, Server, serve
from invoke.exceptions import Exit

from fabfile.remote.fleet import Fleet
from fabfile.workdir import requirements
from infra.inventory import SshCluster


@pytest.fixture
def index() -> Iterator[Server]:
    """The operator's package index, and whatever else pip may ask here. It has nothing."""
    with serve(lambda _asked: Answer(404)) as server:
        yield server


@pytest.fixture
def liar(yard: sshd.Yard, tmp_path: Path, index: Server, monkeypatch: pytest.MonkeyPatch) -> tuple[SshCluster, Path]:
    """A cluster of one node, and that node's Python: a program that answers what the test writes."""
    programs = tmp_path / "bin"
    programs.mkdir()
    python = programs / "python3"
    server = yard.start("127.0.0.2", sshd.free_port(), environment={"PATH": f"{programs}:/usr/bin:/bin"})
    monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple/")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "0")
    return yard.cluster(server.node("node1")), python


def answers(python: Path, answer: object) -> None:
    python.write_text(f"#!/bin/sh\nprintf '%s\\n' {shlex.quote(json.dumps(answer))}\n")
    python.chmod(0o755)


def test_pip_here_reads_no_line_that_a_node_names(liar: tuple[SshCluster, Path], index: Server) -> None:
    cluster, python = liar
    fits = {
        "python": "3.11",
        "machine": "x86_64",
        "glibc": "2.36",
        "has": [],
        "constraints": [f"-r {index.url}/lying.txt"],
    }
    answers(python, {"problem": "pip failed", "fits": fits})
    with Fleet(cluster) as fleet, pytest.raises(Exit) as refused:
        requirements.ensure(fleet, cluster.nodes, "numpy\n", from_operator=True)
    assert refused.value.code == 1
    assert str(refused.value.message) == (
        f"node1: requirements: what it says of its Python cannot be used: constraints lists '-r {index.url}/lying.txt'"
    )
    assert index.asked == []


def test_pip_here_reads_no_option_of_a_record(liar: tuple[SshCluster, Path], index: Server) -> None:
    cluster, python = liar
    fits = {"python": "3.11", "machine": "x86_64", "glibc": "2.36", "has": [], "constraints": []}
    answers(python, {"problem": "pip failed", "fits": fits})
    with Fleet(cluster) as fleet:
        with pytest.raises(Exit, match="name the file again with --requirements FILE"):
            requirements.ensure(fleet, cluster.nodes, f"lying @ {index.url}/lying.tar.gz\n")
        assert index.asked == []
        with pytest.raises(Exit, match="pip on this machine failed"):
            requirements.ensure(fleet, cluster.nodes, "numpy\n")
    assert [asked.path for asked in index.asked] == ["/simple/numpy/"], "the operator's own index is asked"
