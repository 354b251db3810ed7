"""Jobs: their numbers, states and records."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from node.job import files, job_table

NODES = ["node1", "node2", "node3"]


def test_numbers_count_up_over_all_names_and_nobody_gets_the_same(tmp_path: Path) -> None:
    (tmp_path / "demo-7").mkdir()
    taken: list[str] = []
    threads = [threading.Thread(target=lambda: taken.append(job_table.take(tmp_path, "smoke"))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == 20 and min(job_table.number_of(job) for job in taken) == 8


def record(run_dir: Path, **changes: Any) -> dict[str, Any]:
    run_dir.mkdir(parents=True, exist_ok=True)
    state = {"id": run_dir.name, "state": "RUNNING", "reason": "", "nodes": NODES, "created": 0.0, "queued": False}
    files.write(run_dir / "state.json", {**state, **changes})
    return {**state, **changes}


@pytest.fixture
def active(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Jobs whose service runs."""
    names: set[str] = set()
    monkeypatch.setattr(job_table, "is_active", names.__contains__)
    return names


def test_a_job_whose_launcher_is_gone_has_failed_and_is_in_nobodys_way(tmp_path: Path, active: set[str]) -> None:
    record(tmp_path / "a-1")
    assert job_table.state_of(tmp_path / "a-1")["state"] == "FAILED"
    assert job_table.in_the_way(tmp_path, set(NODES)) == []
    active.add("a-1")
    assert [state["id"] for state in job_table.in_the_way(tmp_path, {"node3", "node9"})] == ["a-1"]
    assert job_table.in_the_way(tmp_path, {"node9"}) == []


def test_whether_a_job_in_pods_goes_on_is_not_asked_of_systemd(tmp_path: Path, active: set[str]) -> None:
    assert not active
    record(tmp_path / "a-1", kubernetes=True)
    assert job_table.state_of(tmp_path / "a-1")["state"] == "RUNNING"
    assert [state["state"] for state in job_table.every(tmp_path)] == ["RUNNING"]


def test_who_queues_waits_for_those_before_it_and_not_for_those_after_it(tmp_path: Path, active: set[str]) -> None:
    for number in (2, 3, 10):
        record(tmp_path / f"a-{number}", state="PENDING", queued=True)
        active.add(f"a-{number}")
    assert [state["id"] for state in job_table.in_the_way(tmp_path, set(NODES), "a-3")] == ["a-2"]
    assert [state["id"] for state in job_table.every(tmp_path)] == ["a-2", "a-3", "a-10"]


def test_a_record_is_written_when_the_full_disk_has_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, full = os.fsync, [True, True]

    def sync(file: int) -> None:
        if full and full.pop():
            raise OSError(28, "No space left on device")
        real(file)

    monkeypatch.setattr(os, "fsync", sync)
    files.write(tmp_path / "state.json", {"state": "FAILED"})
    assert files.read(tmp_path / "state.json") == {"state": "FAILED"}
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_numbers_of_jobs_in_the_bucket_are_taken(tmp_path: Path) -> None:
    """A bucket outlives its cluster: the next cluster's jobs must not meet the ones before under their names."""
    assert job_table.take(tmp_path, "demo", ["demo-7", "smoke-9", "notes"]) == "demo-10"
    assert job_table.take(tmp_path, "demo") == "demo-11"


def test_a_systemd_that_does_not_answer_for_a_moment_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is updated it starts anew; a job that is followed then is neither over nor lost sight of."""
    program = tmp_path / "systemctl"
    program.write_text(f"#!/bin/sh\n[ -e {tmp_path}/again ] && echo active && exit\n>{tmp_path}/again; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert job_table.is_active("job-1")
    program.write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setattr(job_table, "_SYSTEMD_SECONDS", 0.1)
    with pytest.raises(subprocess.CalledProcessError):
        job_table.is_active("job-1")
