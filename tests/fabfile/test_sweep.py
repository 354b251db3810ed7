"""`fab train --each`: a job for each value, submitted, followed and compared, with a backend in this process."""

from __future__ import annotations

import os
import signal
import tomllib

import pytest
from fab_command import fab
from memory_backend import MemoryBackend

from fabfile import sweep
from fabfile.backends.base import JobState

SWEEP = ("train", "smoke", "train.lr=1e-3,6e-4", "--each")


def described(loss: float) -> dict[str, object]:
    """What node.run_data says of a run with this validation loss."""
    return {"metrics": {"points": [{"loss": loss - 0.5}], "validations": [{"val_loss": 9.0}, {"val_loss": loss}]}}


def test_a_job_for_each_value_compared_at_the_end(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    backend.data = {"smoke-1": described(3.5), "smoke-2": described(3.25)}
    assert fab(*SWEEP) == 0
    assert [tomllib.loads(text)["train"]["lr"] for text in backend.texts.values()] == [1e-3, 6e-4]
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "2 jobs, each on 3 nodes of memory: $3.00 an hour while one runs; in all as many hours as they take"
        " (--time-limit bounds each)",
        "smoke-1: train.lr=1e-3",
        "smoke-2: train.lr=6e-4",
    ]
    assert sorted(lines[3:7])[0] == "[smoke-1 node1 rank=0] step 1/2 loss 2.0"
    assert [line.split() for line in lines[7:10]] == [
        ["JOB", "train.lr", "STATE", "LOSS", "VAL", "LOSS", "COST"],
        ["smoke-1", "1e-3", "SUCCEEDED", "3.0000", "3.5000", "$3.00"],
        ["smoke-2", "6e-4", "SUCCEEDED", "2.7500", "3.2500", "*", "$3.00"],
    ]
    assert lines[10] == "next: fab report smoke-2 smoke-1"


def test_the_reports_command_names_all_jobs(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    backend.data = {f"smoke-{number}": described(4 - number / 10) for number in range(1, 9)}
    assert fab("train", "smoke", "train.seed=1,2,3,4,5,6,7,8", "--each") == 0
    best_first = " ".join(f"smoke-{number}" for number in range(8, 0, -1))
    assert capsys.readouterr().out.splitlines()[-1] == f"next: fab report {best_first}"


def test_several_keys_are_combined() -> None:
    found = sweep.variants_of(["train.lr=1e-3,6e-4", "train.steps=10", "train.seed=1,2", 'outer.names="a,b"'])
    assert [each.own for each in found] == [
        ("train.lr=1e-3", "train.seed=1"),
        ("train.lr=1e-3", "train.seed=2"),
        ("train.lr=6e-4", "train.seed=1"),
        ("train.lr=6e-4", "train.seed=2"),
    ]
    assert found[0].overrides == ("train.lr=1e-3", "train.steps=10", "train.seed=1", 'outer.names="a,b"')


def test_the_price_of_all_is_said_where_it_is_bounded(
    backend: MemoryBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fab(*SWEEP, "--nodes", "1", "--time-limit", "2h", "--detach") == 0
    printed = capsys.readouterr().out
    assert "2 jobs, each on 1 node of memory: $1.00 an hour while one runs, at most $4.00 in all" in printed
    assert "next: fab jobs   (compare: fab report smoke-1 smoke-2)" in printed
    assert [job.state for job in backend.table] == [JobState.RUNNING, JobState.RUNNING]


def test_a_dry_run_of_a_sweep_starts_nothing(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    assert fab(*SWEEP, "--dry-run") == 0
    printed = capsys.readouterr().out
    assert "# train.lr=1e-3\nwould run smoke on 3 nodes\n# train.lr=6e-4\n" in printed and not backend.table


@pytest.mark.parametrize(
    "words, said",
    [
        (("train.lr=1e-3",), "--each: no key has several values; allowed: such as train.lr=1e-3,6e-4"),
        (("train.lr=1e-3,",), "train.lr=1e-3,: a value is empty; allowed: values with a comma between them"),
        (("train.lr=1e-3,1e-3",), "train.lr=1e-3,1e-3: a value is there twice; allowed: each once"),
        (("train.lr=1e-3,-1",), "train.lr = -1.0; allowed: a finite number above 0 (number)"),
        (("train.lrr=1e-3,1",), "train.lrr: no such key (did you mean train.lr?)"),
        ((f"train.seed={','.join(map(str, range(65)))}",), "--each: 65 jobs; allowed: at most 64"),
        (
            ("train.lr=1e-3,1", "--resume", "smoke-1"),
            "--each: makes new jobs on one cluster: not with --resume or --with",
        ),
        (("train.lr=1e-3,1", "--with", "b"), "--each: makes new jobs on one cluster: not with --resume or --with"),
    ],
)
def test_what_cannot_be_swept_is_one_line(
    words: tuple[str, ...], said: str, backend: MemoryBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fab("train", "smoke", "--each", *words) == 2
    error = capsys.readouterr().err
    assert error.startswith(said) and error.count("\n") == 1
    assert not backend.table


def test_one_that_fails_gives_its_exit_code(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    backend.data = {"smoke-1": {}, "smoke-2": {}}
    backend.ends = (JobState.FAILED, 137, "node2: out of memory")
    assert fab(*SWEEP) == 137
    assert "FAILED" in capsys.readouterr().out


def test_ctrl_c_says_which_jobs_go_on(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(method: str) -> None:
        if method == "submit" and backend.table:
            os.kill(os.getpid(), signal.SIGINT)

    backend.on = interrupt
    assert fab(*SWEEP) == 130
    said = capsys.readouterr().err
    assert said.startswith("\nsmoke-1 goes on without you\nsmoke-2 goes on without you\nnext: fab logs smoke-1")
    assert "next: fab logs smoke-2 --follow   (stop: fab stop smoke-2)" in said
