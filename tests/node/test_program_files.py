"""What a program has written on its first node, wherever that is, is brought to its others before it goes on there."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fabfile.launchers import Launch
from fabfile.launchers.program import Program
from fabfile.remote import node_program
from infra.inventory import Node
from node.job.program_files import Copying, copies
from node.workdir.assemble import assemble

NODES = tuple(Node(name=f"node{number}", private_ip=f"10.0.0.{number}") for number in (2, 3))


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """A second attempt on two nodes, without the head. An `ssh` runs their commands here, in a folder for each."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/launch").write_bytes(node_program.content())
    (tmp_path / "bin").mkdir()
    ssh = tmp_path / "bin/ssh"
    script = f'''#!/bin/sh
while [ $# -gt 2 ]; do shift; done
[ -d "{tmp_path}/$1" ] || {{ echo "ssh: $1: no route to host" >&2; exit 255; }}
exec sh -c "$(printf %s "$2" | sed "s#{tmp_path}/run#{tmp_path}/$1#g")"
'''
    ssh.write_text(script)
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for node in NODES:
        assemble("", tmp_path / node.name / "work", tmp_path / "store")
    program = Program(argv=("python", "train.py"), name="train")
    run, code = str(tmp_path / "run"), str(tmp_path / "code")
    return Launch(id="train-1", nodes=NODES, run_dir=run, code=code, attempt=2, program=program)


def ended(copying: Copying) -> tuple[str, list[str]]:
    """Its problem, and what it has said."""
    while not copying.is_over():
        time.sleep(0.02)
    said: list[str] = []
    problem = copying.problem(said.append)
    copying.end()
    return problem, said


def test_what_the_first_node_has_is_on_the_others_and_what_is_newer_there_stays(launch: Launch, tmp_path: Path) -> None:
    first, other = (tmp_path / node.name / "work" for node in NODES)
    (first / "out").mkdir()
    (first / "out/ckpt.pt").write_bytes(b"x" * 200_000)
    (first / "a name\nof two lines").write_text("y")
    (first / "old").write_text("old")
    (other / "old").write_text("newer")
    os.utime(first / "old", (1, 1))
    (copying,) = copies(launch)
    assert ended(copying) == ("", ["to node3: what the program has written on node2: 3 files, 0.2 MB"])
    assert (other / "out/ckpt.pt").stat().st_size == 200_000 and (other / "a name\nof two lines").read_text() == "y"
    assert (other / "old").read_text() == "newer"


def test_where_nothing_was_written_nothing_is_said(launch: Launch) -> None:
    (copying,) = copies(launch)
    assert ended(copying) == ("", [])


def test_a_node_that_does_not_answer_is_one_line(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "node2").rename(tmp_path / "gone")
    (copying,) = copies(launch)
    problem, said = ended(copying)
    assert problem.startswith(
        "work: not all that the program has written on node2 could be copied: ssh: node2: no route"
    )
    assert said == []


def test_a_first_attempt_and_one_process_bring_nothing(launch: Launch) -> None:
    assert copies(launch.on(NODES, 1)) == []
    assert copies(launch.on(NODES[:1], 2)) == []
