"""`fab fetch` of a program's job: its files, and of its working directory what the program has written."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import service_player
import sshd
from invoke.context import Context
from invoke.exceptions import Exit

from fabfile.verbs.results import fetch
from infra.inventory import to_json
from node.workdir import manifest
from node.workdir.assemble import assemble, record_of
from node.workdir.changes import LEFT_OUT
from node.workdir.manifest import FILE, Entry
from node.workdir.store import Store


@pytest.fixture
def run_dir(yard: sshd.Yard, tmp_path: Path) -> Path:
    """A finished job's run directory on the head, with `big` and `train.py` as they were sent."""
    (tmp_path / "bin").mkdir()
    service_player.install(tmp_path / "bin")  # systemd's part, as the services of jobs are asked for
    environment = {"HOME": str(tmp_path), "PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    server = yard.start("127.0.0.2", sshd.free_port(), environment=environment)
    cluster = replace(yard.cluster(server.node("node1")), shared_dir=str(tmp_path / "fsx"))
    (tmp_path / "nodes.json").write_text(to_json(cluster))
    run = tmp_path / "fsx/runs/prog-1"
    run.mkdir(parents=True)
    state = {"id": "prog-1", "state": "SUCCEEDED", "nodes": ["node1"], "created": 5.0, "started": 5.0}
    (run / "state.json").write_text(json.dumps(state))
    (run / "log").write_text("1.000 node1 0 hello\n")
    store, entries = Store(tmp_path / "store"), []
    for name, text in {"big": b"x" * 2_000_000, "train.py": b"print()"}.items():
        entries.append(Entry(name, FILE, len(text), manifest.digest(text)))
        store.take(entries[-1].content, len(text), io.BytesIO(text))
    store.keep(manifest.encode(entries))
    assemble(manifest.digest(manifest.encode(entries)), run / "work", store.folder)
    return run


def fetched(tmp_path: Path) -> list[str]:
    target = tmp_path / "here"
    fetch.body(Context(), "prog-1", to=str(target), inventory=str(tmp_path / "nodes.json"))
    return sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())


def test_what_the_program_wrote_is_fetched_and_what_was_sent_is_not(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetched(tmp_path) == ["log", "state.json"]
    (run_dir / "work/out").mkdir()
    (run_dir / "work/out/ckpt.pt").write_bytes(b"weights")
    (run_dir / "work/train.py").write_text("print(2)")
    (run_dir / "work/out/latest").symlink_to("ckpt.pt")
    assert fetched(tmp_path) == ["log", "state.json", "work/out/ckpt.pt", "work/train.py"]
    assert (tmp_path / "here/work/out/ckpt.pt").read_bytes() == b"weights"
    assert capsys.readouterr().err == f"work: {LEFT_OUT}: 'out/latest'\n"


def test_a_list_of_changes_that_fails_is_an_error(run_dir: Path, tmp_path: Path) -> None:
    record_of(run_dir / "work").write_text('{"files": [["a"]]}')
    with pytest.raises(Exit, match="what has changed in its working directory cannot be listed") as caught:
        fetched(tmp_path)
    assert caught.value.code == 1 and not (tmp_path / "here").exists()


def on_own_disk(yard: sshd.Yard, tmp_path: Path, number: int) -> sshd.Sshd:
    """A node whose logins begin in a home of its own, with the files of a job's processes there."""
    home = tmp_path / f"home{number}"
    work = home / "runs/prog-1/work"
    work.mkdir(parents=True)
    (work / f"out-{number}").write_text("own")
    state = {"id": "prog-1", "state": "SUCCEEDED", "nodes": ["node1", "node2"], "created": 5.0, "started": 5.0}
    if number == 1:
        (home / "runs/prog-1/state.json").write_text(json.dumps(state))
    script = home / "shell"
    script.write_text('#!/bin/bash\ncd "$HOME" && eval "$SSH_ORIGINAL_COMMAND"\n')
    script.chmod(0o755)
    environment = {"HOME": str(home), "PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    address = f"127.0.0.{number + 1}"
    return yard.start(address, sshd.free_port(address), extra=f"ForceCommand {script}", environment=environment)


@pytest.mark.acceptance  # four runs of the verb over two SSH servers
def test_all_nodes_are_those_that_have_files_of_their_own(
    yard: sshd.Yard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin").mkdir()
    service_player.install(tmp_path / "bin")
    servers = [on_own_disk(yard, tmp_path, number) for number in (1, 2)]
    cluster = yard.cluster(*(server.node(f"node{number + 1}") for number, server in enumerate(servers)))
    (tmp_path / "nodes.json").write_text(to_json(cluster))
    assert fetched(tmp_path) == ["state.json", "work/out-1"]
    options = {"to": str(tmp_path / "here"), "inventory": str(tmp_path / "nodes.json")}
    for _ in range(2):  # the second time nothing is new
        fetch.body(Context(), "prog-1", all_nodes=True, **options)
        assert (tmp_path / "here/nodes/node2/work/out-2").read_text() == "own"
    servers[1].stop()
    with pytest.raises(Exit, match=r"node2 .*: Connection refused") as caught:
        fetch.body(Context(), "prog-1", all_nodes=True, **options)
    assert caught.value.code == 1
    with pytest.raises(Exit, match="--weights --all-nodes: the head has the model") as caught:
        fetch.body(Context(), "prog-1", all_nodes=True, weights=True, **options)
    assert caught.value.code == 2


def test_where_nodes_share_a_folder_there_are_no_others(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"to": str(tmp_path / "here"), "inventory": str(tmp_path / "nodes.json")}
    fetch.body(Context(), "prog-1", all_nodes=True, **options)
    assert "no other node has files of its own of this job" in capsys.readouterr().out
