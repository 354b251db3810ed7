"""`fab tensorboard`: a real TensorBoard on a node, which shows what comes, and ends with the verb."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import service_player
import sshd
from forwarded import Watched, end_sessions, get
from invoke.context import Context
from invoke.exceptions import Exit
from polling import until

from fabfile.tunnel import tensorboard as board
from fabfile.verbs.tensorboard import tensorboard
from infra.inventory import to_json

pytestmark = pytest.mark.skipif(find_spec("tensorboard") is None, reason="TensorBoard is not installed")


@pytest.fixture
def run_dir(yard: sshd.Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run directory of a job on a node whose image has the tests' Python."""
    programs = tmp_path / "bin"
    programs.mkdir()
    service_player.install(programs)
    monkeypatch.setattr(board, "VENV", str(programs))
    monkeypatch.setattr(board, "_RELOAD", 1)
    monkeypatch.setattr(board, "_AGAIN", 0.1)
    environment = {"HOME": str(tmp_path), "PATH": f"{programs}:/usr/bin:/bin"}
    server = yard.start("127.0.0.2", sshd.free_port(), environment=environment)
    cluster = replace(yard.cluster(server.node("node1")), shared_dir=str(tmp_path / "fsx"))
    (tmp_path / "nodes.json").write_text(to_json(cluster))
    run = tmp_path / "fsx/runs/demo-1"
    run.mkdir(parents=True)
    state = {"id": "demo-1", "state": "RUNNING", "nodes": ["node1"], "created": 5.0, "started": 5.0}
    (run / "state.json").write_text(json.dumps(state))
    return run


def write(folder: Path, name: str) -> None:
    """Write an event, in a process of its own: TensorBoard's writer would keep its thread here."""
    code = """
import sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(sys.argv[1])
value = Summary.Value(tag=sys.argv[2], simple_value=0.5)
writer.add_event(Event(step=1, wall_time=1.0, summary=Summary(value=[value])))
writer.close()
"""
    subprocess.run([sys.executable, "-c", code, folder, name], check=True, timeout=60)


def tags(address: str) -> dict[str, list[str]]:
    """Run -> tags, as TensorBoard's page asks for them."""
    found: dict[str, list[str]] = json.loads(get(address, "/data/plugin/scalars/tags"))
    return found


def on_node(run_dir: Path) -> str:
    """The processes of TensorBoard there."""
    argv = ["pgrep", "-f", f"run_main.*--logdir {run_dir}"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=20).stdout


@pytest.mark.timeout(200)
@pytest.mark.acceptance  # a TensorBoard, and two processes that write for it
def test_a_run_is_shown_live_over_a_lost_connection_and_nothing_stays(
    run_dir: Path, yard: sshd.Yard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(run_dir / "tensorboard", "loss")

    def use(address: str) -> None:
        assert address == watched.out.split("http://")[1].split(" ")[0]
        until(lambda: "loss" in tags(address).get("tensorboard", ()), 30)
        write(run_dir / "work/out", "own")
        until(lambda: "own" in tags(address).get("work/out", ()), 30)
        assert on_node(run_dir)
        end_sessions(yard.servers[0])
        watched.until_said("TensorBoard has ended: ")
        until(lambda: shows(address), 60)

    watched = Watched(capsys, use, tensorboard.body)
    out = watched.run("latest", local=sshd.free_port(), inventory=str(tmp_path / "nodes.json"))
    assert "shows demo-1, live; Ctrl-C ends it, and TensorBoard on node1" in out and "written nothing" not in out
    until(lambda: not on_node(run_dir), 20)


def shows(address: str) -> bool:
    try:
        return "own" in tags(address).get("work/out", ())
    except (OSError, ValueError):
        return False


def test_one_that_does_not_start_is_one_line(run_dir: Path, tmp_path: Path) -> None:
    """Its Python ends with an error, as with a package that another one does not fit."""
    fails = 'case "$2" in *run_main*) echo "ImportError: protobuf" >&2; exit 1 ;; esac'
    (tmp_path / "bin/python").write_text(f"#!/bin/sh\n{fails}\n")
    with pytest.raises(Exit, match="node1: TensorBoard was not started: exit code 1: ImportError: protobuf") as caught:
        tensorboard.body(Context(), "demo-1", local=sshd.free_port(), inventory=str(tmp_path / "nodes.json"))
    assert caught.value.code == 1


def test_an_image_without_it_gets_an_environment_with_it(
    run_dir: Path, yard: sshd.Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here the index is empty, so pip's answer shows what was asked for and that pip was asked."""
    (tmp_path / "bin/python").write_text("#!/bin/sh\nexit 1\n")
    (yard.servers[0].root / "opt/trainyard/venv").symlink_to(sys.prefix)
    monkeypatch.setattr(board, "_PACKAGE", "--no-index\nno-such-tensorboard==2\n")
    with pytest.raises(Exit, match=r"node1: requirements: pip failed:(.|\n)*no-such-tensorboard==2"):
        tensorboard.body(Context(), "demo-1", inventory=str(tmp_path / "nodes.json"))
    assert "its image has no TensorBoard" in capsys.readouterr().out


def test_bad_input_is_one_line(run_dir: Path, tmp_path: Path) -> None:
    inventory = str(tmp_path / "nodes.json")
    with pytest.raises(Exit, match="no job 'demo-7' on yard; there are: demo-1") as caught:
        tensorboard.body(Context(), "demo-7", inventory=inventory)
    assert caught.value.code == 2
    with pytest.raises(Exit, match="port '70000': must be") as caught:
        tensorboard.body(Context(), "demo-1", local=70000, inventory=inventory)
    assert caught.value.code == 2
