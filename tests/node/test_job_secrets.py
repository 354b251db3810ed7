"""The key of a tracker reaches rank 0's process alone, is on no disk, and is gone when the job is over."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fabfile.launchers import Launch, nodes_to_text
from infra.inventory import Node, SshCluster
from node.job import aftermath, cleanup, files, job_table, rank_wrapper, submit
from node.job.spec import JobSpec, from_record, keeper_spec

KEY = {"WANDB_API_KEY": "k" * 40}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for secrets, made as on a node but for sudo."""
    folder = tmp_path / "secrets"
    real = subprocess.run

    def without_sudo(argv: list[str], **options: Any) -> Any:
        return real(argv[2:] if argv[:2] == ["sudo", "-n"] else argv, **options)

    monkeypatch.setattr(files, "SECRETS", folder)
    monkeypatch.setattr(subprocess, "run", without_sudo)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def asked(folder: Path) -> JobSpec:
    """As `fab train` asks for a job."""
    cluster = SshCluster(name="yard", nodes=(Node(name="node1", private_ip="10.0.0.1", role="head"),))
    runs = str(folder / "runs")
    return JobSpec(name="demo", job="", launcher="mpirun", cluster=cluster, timeout=60.0, runs=runs, code="/code")


def place(number: int) -> rank_wrapper.RankPlacement:
    nodes = [Node(name="node1", private_ip="10.0.0.1", slots=2), Node(name="node2", private_ip="10.0.0.2")]
    return rank_wrapper.RankPlacement({"TRAINYARD_NODES": nodes_to_text(nodes), "PMI_RANK": str(number)})


def test_they_are_in_memory_and_for_their_owner() -> None:
    assert files.SECRETS.parent == Path("/run") and str(os.getuid()) in files.SECRETS.name


def test_rank_0_has_them_and_no_other_rank_of_the_head(kept: Path) -> None:
    submit.write_secrets("demo-1", KEY)
    assert mode(kept) == 0o700 and mode(kept / "demo-1.json") == 0o600
    files.write_secrets(files.node_secrets_of("demo-1"), KEY)  # as the keeper does
    found = [rank_wrapper.secrets(place(number), {"TRAINYARD_JOB": "demo-1"}) for number in range(3)]
    assert found == [KEY, {}, {}]
    assert rank_wrapper.secrets(place(0), {"TRAINYARD_JOB": "demo-2"}) == {}


def test_a_resumed_job_has_those_of_who_resumes_it(kept: Path) -> None:
    submit.write_secrets("demo-1", KEY)
    submit.write_secrets("demo-1", {"WANDB_API_KEY": "other"})
    assert files.read(kept / "demo-1.json") == {"WANDB_API_KEY": "other"}
    submit.write_secrets("demo-1", {})
    assert not list(kept.iterdir())


def test_the_keeper_of_rank_0_gets_them_wherever_that_is(kept: Path, tmp_path: Path) -> None:
    submit.write_secrets("demo-1", KEY)
    (tmp_path / "job.toml").touch()
    nodes = (Node(name="node2", private_ip="10.0.0.2"), Node(name="node3", private_ip="10.0.0.3"))
    launch = Launch(id="demo-1", nodes=nodes, run_dir=str(tmp_path))
    assert [keeper_spec(launch, node).secrets for node in nodes] == [KEY, {}]


def test_a_link_in_their_place_is_not_followed(kept: Path, tmp_path: Path) -> None:
    kept.mkdir()
    (kept / "demo-1.json").symlink_to(tmp_path / "elsewhere")
    submit.write_secrets("demo-1", KEY)
    assert not (tmp_path / "elsewhere").exists() and not (kept / "demo-1.json").is_symlink()


@pytest.mark.parametrize("state", ["RUNNING", "SUCCEEDED"])
def test_they_go_with_the_job_s_service_whatever_ended_it(
    state: str, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a killed supervisor: this is its service's last act."""
    submit.write_secrets("demo-1", KEY)
    submit.write_secrets("demo-2", KEY)
    run_dir = tmp_path / "runs" / "demo-1"
    run_dir.mkdir(parents=True)
    files.write(run_dir / "spec.json", replace(asked(tmp_path), id="demo-1", run_dir=str(run_dir)).to_record())
    files.write(run_dir / "state.json", {"id": "demo-1", "state": state, "nodes": ["node1"], "created": 0})
    monkeypatch.setattr(aftermath, "sweep", lambda *_: {})
    aftermath.main([str(run_dir)])
    assert [path.name for path in kept.iterdir()] == ["demo-2.json"]


def test_a_service_that_does_not_start_leaves_none(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        assert (kept / "demo-1.json").exists()
        raise subprocess.CalledProcessError(1, "systemd-run")

    spec = {**asked(tmp_path).to_record(), "secrets": KEY}
    monkeypatch.setattr(submit, "_refused", lambda *_: "")
    monkeypatch.setattr(cleanup, "busy_with", lambda _job: [])
    monkeypatch.setattr(submit, "_start", refuse)
    monkeypatch.setattr("sys.stdin", _Line(json.dumps(spec)))
    with pytest.raises(subprocess.CalledProcessError):
        submit.main([])
    assert not list(kept.iterdir())
    found = "".join(path.read_text() for path in (tmp_path / "runs").rglob("*") if path.is_file())
    assert KEY["WANDB_API_KEY"] not in found
    assert job_table.number_of("demo-1") == 1


def test_what_is_asked_for_comes_back_as_the_same_object(tmp_path: Path) -> None:
    """Over a line of JSON to the head, and from spec.json in the supervisor and after it."""
    spec = replace(
        asked(tmp_path), taken=("demo-1",), among=("node1",), threads=3, restarts=2, queue=True, price_per_hour=1.5
    )
    assert from_record(json.loads(json.dumps(spec.to_record()))) == spec


class _Line:
    def __init__(self, text: str) -> None:
        self._text = text

    def readline(self) -> str:
        return self._text + "\n"
