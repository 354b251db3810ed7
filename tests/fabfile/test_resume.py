"""`fab train --resume`: a job goes on with its own settings; what changes them is said, what is wrong is one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from invoke.exceptions import Exit
from memory_backend import MemoryBackend

from fabfile import resume
from fabfile.backends.base import JobRecord, JobState, find
from fabfile.backends.submission import Begun
from fabfile.job_file import resolve


def job(name: str, state: JobState = JobState.SUCCEEDED) -> JobRecord:
    return JobRecord(id=name, state=state, nodes=("node1", "node2"), created=0.0)


JOBS = [job(name) for name in ("demo-2", "smoke-9", "demo-12")]


def cluster(*overrides: str, state: JobState = JobState.FAILED) -> MemoryBackend:
    """One that knows the job smoke-1, begun with these settings."""
    text = resolve("smoke", overrides, 1).text
    return MemoryBackend(table=[job("smoke-1", state)], texts={"smoke-1": text})


def resumed(backend: MemoryBackend, *overrides: str, job: str = "") -> Any:
    with backend:
        begun = resume.begun(backend, "smoke-1", job, overrides)
    return resume.settings(begun, job, overrides, 1)


def test_a_job_is_found_by_its_id_its_number_or_as_the_latest() -> None:
    assert find(JOBS, "demo-2") == JOBS[0] and find(JOBS, "9") == JOBS[1]
    assert find(JOBS, "latest") == JOBS[2] and find(JOBS, "2") == JOBS[0]
    assert find(JOBS, "demo-9") is None and find(JOBS, "1") is None and find([], "latest") is None


def test_a_resumed_job_keeps_its_own_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """Seen before: 60 steps became the file's 600, the rate jumped, and a finished run went on."""
    again = resumed(cluster("train.steps=60", "train.lr=0.001"), job="smoke")
    assert "steps = 60\n" in again.text and "lr = 0.001\n" in again.text
    output = capsys.readouterr().out
    assert (
        "keeps its own settings" in output
        and "train.steps: 60 -> 20" in output
        and "train.lr: 0.001 -> 0.003" in output
    )


def test_overrides_are_applied_to_its_own_settings_and_each_change_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    again = resumed(cluster("train.steps=60"), "train.steps=90", "train.seed=1337")
    assert "steps = 90\n" in again.text
    assert capsys.readouterr().out.splitlines() == ["smoke-1: train.steps: 60 -> 90"]


def test_a_run_that_is_done_wants_more_steps() -> None:
    done = cluster("train.steps=60", state=JobState.SUCCEEDED)
    with pytest.raises(Exit, match=r"has done its 60 steps.*fab train --resume smoke-1 train\.steps=120") as caught:
        resumed(done)
    assert caught.value.code == 2
    assert "steps = 61\n" in resumed(done, "train.steps=61").text


def test_a_bad_override_is_one_line() -> None:
    with pytest.raises(Exit, match=r"train\.step: no such key \(did you mean train\.steps\?\)") as caught:
        resumed(cluster(), "train.step=3")
    assert caught.value.code == 2


@pytest.mark.parametrize(("count", "had", "expected"), [(0, 2, 2), (3, 2, 3), (0, 9, 3), (0, 0, 3), (1, 3, 1)])
def test_it_goes_on_with_as_many_nodes_as_it_had(count: int, had: int, expected: int) -> None:
    assert resume.nodes(Begun("smoke-1", "", had), 3, count) == expected


def test_a_job_that_its_mirror_alone_knows_goes_on_with_the_mirrors_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = resolve("smoke", ["train.steps=77"], 1).text
    bucket = "checkpoint.mirror=s3://bucket/runs"
    assert "steps = 77\n" in resumed(MemoryBackend(bucket={"smoke-1": text}), bucket).text
    assert "smoke-1 is not one of memory's jobs: resuming it from s3://bucket/runs/smoke-1\n" in capsys.readouterr().out
    with pytest.raises(Exit, match=r"has no job\.toml: name the job: fab train JOB --resume smoke-1"):
        resumed(MemoryBackend(bucket={"smoke-1": ""}), bucket)
    assert "steps = 20\n" in resumed(MemoryBackend(bucket={"smoke-1": ""}), bucket, job="smoke").text


def test_the_clusters_own_job_comes_before_the_mirrors() -> None:
    backend = cluster("train.steps=60")
    backend.mirror, backend.bucket = "s3://bucket/runs", {"smoke-1": resolve("smoke", ["train.steps=77"], 1).text}
    assert "steps = 60\n" in resumed(backend).text
    assert "steps = 60\n" in resumed(replace(backend, mirror=""), "checkpoint.mirror=none").text


def test_a_job_without_its_file_is_said() -> None:
    backend = cluster()
    backend.texts["smoke-1"] = ""
    with pytest.raises(Exit, match=r"here: smoke-1 has no job\.toml"):
        resumed(backend)
