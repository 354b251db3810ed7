"""The verbs of jobs with a backend in this process: follow, detach, resume, stop, fetch, sample, report."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fab_command import fab
from memory_backend import CREATED, NODES, MemoryBackend

from fabfile import backends, log_display
from fabfile.backends.base import AnotherMachine, Backend, JobState, LogPart, LogRequest, OtherJob
from fabfile.job_file import resolve
from node import run_data


def test_a_job_is_followed_to_its_end(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    assert fab("train", "smoke") == 0
    assert capsys.readouterr().out.splitlines() == [
        "smoke-1: 3 ranks on node1, node2, node3",
        "[node1 rank=0] step 1/2 loss 2.0",
        "[node1 rank=0] step 2/2 loss 1.0",
        "next: fab sample smoke-1 --prompt ...   (files: fab fetch smoke-1)",
    ]
    assert not backend.is_open


def test_a_dry_run_starts_nothing(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    assert fab("train", "smoke", "--nodes", "2", "--dry-run") == 0
    assert capsys.readouterr().out == "would run smoke on 2 nodes\n" and backend.table == []


@pytest.mark.parametrize(
    ("words", "restarts", "after_losses_only"),
    [
        ([], 3, True),
        (["--restarts", "0"], 0, False),
        (["--restarts", "5"], 5, False),
        (["--elastic"], 8, False),
        (["--elastic", "--restarts", "0"], 0, False),
    ],
)
def test_how_often_a_job_starts_again_is_the_clusters_unless_somebody_says_so(
    words: list[str], restarts: int, after_losses_only: bool, backend: MemoryBackend
) -> None:
    backend.restarts = 3
    assert fab("train", "smoke", *words) == 0
    (asked,) = backend.asked
    assert (asked.restarts, asked.after_losses_only) == (restarts, after_losses_only)


def test_a_program_starts_again_only_if_somebody_says_so(
    backend: MemoryBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is known of its checkpoints."""
    backend.restarts = 3
    monkeypatch.chdir(tmp_path)
    assert fab("launch", "--", "true") == 0
    assert fab("launch", "--restarts", "2", "--", "true") == 0
    assert [(asked.restarts, asked.after_losses_only) for asked in backend.asked] == [(0, False), (2, False)]


@pytest.mark.parametrize("code", [1, 137])
def test_the_exit_code_of_a_failed_job_is_that_of_the_verb(
    code: int, backend: MemoryBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    backend.ends = (JobState.FAILED, code, "node2: out of memory")
    assert fab("train", "smoke") == code
    assert "next: fab logs smoke-1   (go on: fab train --resume smoke-1)" in capsys.readouterr().err


def test_a_detached_job_goes_on(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    assert fab("train", "smoke", "--detach") == 0
    assert backend.table[0].state == JobState.RUNNING
    assert "next: fab logs smoke-1 --follow   (stop: fab stop smoke-1)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("connect", "interrupted: no job was started"),
        ("prepare", "interrupted: no job was started"),
        ("submit", "smoke-1 goes on without you\nnext: fab logs smoke-1 --follow   (stop: fab stop smoke-1)"),
        ("logs", "smoke-1 goes on without you\nnext: fab logs smoke-1 --follow   (stop: fab stop smoke-1)"),
    ],
)
def test_ctrl_c_says_whether_a_job_was_started(
    when: str,
    expected: str,
    backend: MemoryBackend,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(method: str) -> None:
        if method == when:
            os.kill(os.getpid(), signal.SIGINT)

    def connect(_stack: str, _inventory: str) -> Backend:
        interrupt("connect")
        return backend

    backend.on = interrupt
    monkeypatch.setattr(backends, "connect", connect)
    assert fab("train", "smoke") == 130
    assert capsys.readouterr().err == f"\n{expected}\n"
    assert bool(backend.table) == (when in ("submit", "logs"))


def test_a_busy_cluster_is_said_with_what_to_do(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    fab("train", "smoke", "--detach")
    assert fab("train", "smoke") == 1
    line = "node1: busy with another\nnext: fab jobs   (or wait for the nodes: fab train ... --queue)\n"
    assert capsys.readouterr().err == line
    assert fab("train", "smoke", "--detach", "--queue") == 0 and len(backend.table) == 2


def test_more_nodes_than_there_are_and_no_job_are_refused(
    backend: MemoryBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fab("train", "smoke", "--nodes", "4") == 2 and "memory has 3" in capsys.readouterr().err
    assert fab("train") == 2 and "which job?" in capsys.readouterr().err
    assert backend.table == []


def test_a_job_is_resumed_with_its_own_settings(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    fab("train", "smoke", "train.steps=7", "train.warmup=1", "--nodes", "2")
    capsys.readouterr()
    assert fab("train", "--resume", "1", "train.steps=9") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "smoke-1: nodes: 2, as it had (--nodes N changes that)",
        "smoke-1: train.steps: 7 -> 9",
        "smoke-1: 2 ranks on node1, node2",
    ]
    assert [job.id for job in backend.table] == ["smoke-1"]


def test_a_job_that_the_mirror_alone_knows_is_resumed(
    backend: MemoryBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    backend.mirror, backend.bucket = "s3://shelf/runs", {"smoke-8": resolve("smoke", ["train.steps=30"], 1).text}
    assert fab("train", "--resume", "smoke-8") == 0
    assert "smoke-8 is not one of memory's jobs: resuming it from s3://shelf/runs/smoke-8" in capsys.readouterr().out
    assert "steps = 30\n" in backend.texts["smoke-8"]


def test_a_lost_connection_loses_and_repeats_no_line(
    backend: MemoryBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    fab("train", "smoke", "--detach")
    capsys.readouterr()
    backend.lost_at = 1
    assert fab("logs", "latest", "--follow") == 0
    captured = capsys.readouterr()
    assert [line.partition("] ")[2] for line in captured.out.splitlines()[:-1]] == list(backend.lines)
    assert captured.err == "connection to here lost, trying again: the line is dead\n"


def test_a_host_that_stays_away_is_given_up(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fab("train", "smoke", "--detach")
    monkeypatch.setattr(log_display, "_PATIENCE", 0.0)
    backend.lost_at = 0
    assert fab("logs", "smoke-1", "--follow") == 1
    assert "here: the line is dead\nnext: fab logs smoke-1 --follow" in capsys.readouterr().err


def test_a_host_in_whose_place_another_machine_answers_is_given_up_at_once(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A manager follows the log of a head that was made again over a new connection."""
    fab("train", "smoke", "--detach")

    def refused(_request: LogRequest) -> Iterator[LogPart]:
        raise AnotherMachine("HOST KEY MISMATCH")

    monkeypatch.setattr(backend, "logs", refused)
    assert fab("logs", "smoke-1", "--follow") == 1
    assert "here: HOST KEY MISMATCH\nnext: fab logs smoke-1 --follow" in capsys.readouterr().err


def test_the_log_so_far_and_of_one_rank(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    fab("train", "smoke", "--detach")
    capsys.readouterr()
    assert fab("logs", "1", "--rank", "2") == 0
    assert capsys.readouterr().out == "next: fab logs smoke-1 --follow   (stop: fab stop smoke-1)\n"
    assert fab("logs", "1", "--rank", "3") == 2 and "ranks 0 to 2" in capsys.readouterr().err
    assert fab("logs", "zebra") == 2 and "no job 'zebra' on memory; there are: smoke-1" in capsys.readouterr().err


def test_the_table_and_the_json_of_jobs(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    assert fab("jobs") == 0 and "fab train JOB.toml" in capsys.readouterr().out
    fab("train", "smoke", "--detach")
    capsys.readouterr()
    fab("jobs")
    assert "smoke-1" in (out := capsys.readouterr().out) and "next: fab logs smoke-1 --follow" in out
    fab("jobs", "--json")
    (output,) = json.loads(capsys.readouterr().out)
    assert (output["id"], output["state"], output["nodes"], output["created"]) == (
        "smoke-1",
        "RUNNING",
        [*NODES],
        CREATED,
    )


def test_slurms_number_of_our_own_jobs_stands_beside_others(
    backend: MemoryBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    fab("train", "smoke", "--detach")
    backend.table[0] = replace(backend.table[0], slurm="41")
    capsys.readouterr()
    fab("jobs")
    head, ours = (line.split() for line in capsys.readouterr().out.splitlines()[:2])
    assert (head[:3], ours[:3]) == (["JOB", "SLURM", "STATE"], ["smoke-1", "41", "RUNNING"])
    backend.others.append(
        OtherJob(id="42", user="eve", name="theirs", state="PENDING", nodes="", count=2, submitted=CREATED)
    )
    fab("jobs")
    _, ours, theirs = (line.split() for line in capsys.readouterr().out.splitlines()[:3])
    assert ours[:3] == ["smoke-1", "41", "RUNNING"] and theirs[:3] == ["-", "42", "PENDING"]


@pytest.mark.parametrize(("words", "reason"), [([], "stopped"), (["--now"], "stopped at once")])
def test_a_job_is_stopped(
    words: list[str], reason: str, backend: MemoryBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    fab("train", "smoke", "--detach")
    capsys.readouterr()
    assert fab("stop", "smoke-1", *words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "smoke-1: asked to stop",
        f"smoke-1 CANCELLED: {reason}",
        "nothing of smoke-1 is left on 3 nodes",
    ]
    backend.left = {"node2": "process 12"}
    assert fab("stop", "smoke-1") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["smoke-1 is CANCELLED already", "node2: still there: process 12"]


def test_files_are_fetched(
    backend: MemoryBackend, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fab("train", "smoke", "--detach")
    state = json.dumps({"id": "smoke-1", "started": CREATED}).encode()
    backend.content = {"state.json": state, "checkpoints/step-1/model": b"m" * 9}
    assert fab("fetch", "latest") == 0 == fab("fetch", "latest")
    assert (tmp_path / "runs/smoke-1/checkpoints/step-1/model").read_bytes() == b"m" * 9
    assert "0 of 2 files new or changed" in capsys.readouterr().out
    backend.content = {"../out": b""}
    assert fab("fetch", "latest", "--to", "other") == 1
    assert "here: smoke-1 was not fetched: '../out' has an empty part" in capsys.readouterr().err


def test_weights_are_made_on_the_head_and_fetched_alone(
    backend: MemoryBackend, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fab("train", "smoke", "--detach")
    state = json.dumps({"id": "smoke-1", "started": CREATED}).encode()
    backend.content = {"state.json": state, "checkpoints/step-1/model": b"m" * 9}
    capsys.readouterr()
    assert fab("fetch", "latest", "--weights") == 0
    assert "from_pretrained('runs/smoke-1/weights')" in capsys.readouterr().out
    assert (tmp_path / "runs/smoke-1/weights/model.safetensors").read_bytes() == b"w" * 3000
    assert not (tmp_path / "runs/smoke-1/checkpoints").exists()
    assert fab("fetch", "latest") == 0, "the rest can be fetched into the same folder afterwards"
    assert (tmp_path / "runs/smoke-1/checkpoints/step-1/model").exists()


def test_text_is_sampled_and_its_program_s_exit_code_passed_on(
    backend: MemoryBackend, capfd: pytest.CaptureFixture[str]
) -> None:
    fab("train", "smoke", "--detach")
    capfd.readouterr()
    assert fab("sample", "1", "--prompt", "a", "--tokens", "2") == 0
    assert capfd.readouterr().out.rstrip("\n") == "a0 a1 "
    assert fab("sample", "1", "--seed", "0") == 3 and capfd.readouterr().err.startswith("no model")


def test_a_report_is_made_of_what_the_backend_reads(
    backend: MemoryBackend, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "demo-1").mkdir()
    (tmp_path / "demo-1/job.toml").write_text(resolve("smoke", [], 3).text)
    (tmp_path / "demo-1/metrics.jsonl").write_text('{"step": 1, "time": 1.0, "tokens": 64, "loss": 2.5}\n')
    backend.data = {"demo-1": run_data.collect(tmp_path / "demo-1")}
    assert fab("report", "demo-1", "--out", str(tmp_path / "page.html")) == 0
    page = (tmp_path / "page.html").read_text()
    assert "demo-1" in page and "node2" in page and "not known now" in page
