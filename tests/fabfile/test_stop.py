"""`fab stop` of a job whose supervisor hangs, or takes its time."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from fab_command import fab
from memory_backend import MemoryBackend

from fabfile.backends.base import JobState
from fabfile.verbs import jobs

TRAINER, PROGRAM, PATIENT = ["train", "smoke"], ["launch", "--", "true"], ["launch", "--grace", "600", "--", "true"]
AT_ONCE, LOG = "to end it at once: fab stop {} --now", "its log: fab logs {} --rank -"


class Clock:
    """A clock of the verb's own, which its naps move on; at `ends` seconds the job is over."""

    def __init__(self, backend: MemoryBackend, ends: float) -> None:
        self.seconds, self._backend, self._ends = 0.0, backend, ends

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        if self.seconds >= self._ends:
            self._backend.end(self._backend.table[0].id, JobState.CANCELLED, 1, "stopped: step 8 is in the checkpoint")


@pytest.fixture(autouse=True)
def work(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def hung(backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch, *begin: str, ends: float = float("inf")) -> Clock:
    """A job that has begun, and does not end when it is asked to."""
    at = begin.index("--") if "--" in begin else len(begin)
    assert fab(*begin[:at], "--detach", *begin[at:]) == 0
    clock = Clock(backend, ends)
    own = SimpleNamespace(monotonic=lambda: clock.seconds, sleep=clock.sleep, time=time.time)
    monkeypatch.setattr(jobs, "time", own)
    monkeypatch.setattr(backend, "stop", lambda _job, *, now: None)
    return clock


CASES = [
    (TRAINER, [], 150 + 90, AT_ONCE),
    (PROGRAM, [], 30 + 90, AT_ONCE),
    (PATIENT, [], 600 + 90, AT_ONCE),
    (TRAINER, ["--now"], 90, LOG),
    (PATIENT, ["--now"], 90, LOG),
]


@pytest.mark.parametrize(("begin", "words", "seconds", "how"), CASES)
def test_a_job_whose_supervisor_hangs_is_not_waited_for_for_ever(
    begin: list[str],
    words: list[str],
    seconds: int,
    how: str,
    backend: MemoryBackend,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = hung(backend, monkeypatch, *begin)
    job = backend.table[0].id
    capsys.readouterr()
    assert fab("stop", job, *words) == 1
    out, error = capsys.readouterr()
    assert out == f"{job}: asked to stop\n"
    assert error == f"{job} is RUNNING {seconds} s after it was asked to stop: {how.format(job)}\n"
    assert clock.seconds == pytest.approx(seconds, abs=1)


@pytest.mark.parametrize(("begin", "words", "seconds"), [case[:3] for case in CASES])
def test_a_job_has_the_time_that_its_end_may_take(
    begin: list[str],
    words: list[str],
    seconds: int,
    backend: MemoryBackend,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hung(backend, monkeypatch, *begin, ends=seconds - 1)
    job = backend.table[0].id
    assert fab("stop", job, *words) == 0
    assert f"{job} CANCELLED: stopped: step 8 is in the checkpoint\n" in capsys.readouterr().out
