"""A run of the tests that takes more processor time than it may fails, and says what took it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import processor_budget
import pytest

BUSY = """
import pytest, time

def busy():
    end = time.process_time() + 0.6
    while time.process_time() < end: pass

def test_busy():
    busy()

@pytest.mark.counted_apart
def test_with_a_cache():
    busy()
"""


def run(folder: Path, budget: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(BUSY)
    (folder / "conftest.py").write_text('pytest_plugins = ["processor_budget"]\n')
    support = Path(processor_budget.__file__).parent
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--processor-budget", budget, *words]
    environment = {"PYTHONPATH": str(support), "PATH": "/usr/bin:/bin"}
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "workers",
    [pytest.param((), marks=pytest.mark.acceptance), ("--numprocesses", "1")],
    ids=["alone", "with workers"],
)
def test_a_run_above_its_budget_fails_and_names_what_took_it(workers: tuple[str, ...], tmp_path: Path) -> None:
    done = run(tmp_path, "0.1", *workers)
    assert done.returncode == 1 and "2 passed" in done.stdout, done.stdout + done.stderr
    assert "above its budget" in done.stdout and " s  test_it.py::test_busy\n" in done.stdout
    assert "apart from its budget: 1 s of test_it.py::test_with_a_cache\n" in done.stdout
    assert " s  test_it.py::test_with_a_cache" not in done.stdout


@pytest.mark.acceptance
def test_a_run_within_its_budget_passes(tmp_path: Path) -> None:
    done = run(tmp_path, "1000")
    assert done.returncode == 0 and "processor time: " in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(("spent", "code"), [("10", 0), ("1e9", 1)])
def test_a_sum_is_judged(
    spent: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor_budget, "probe", lambda: processor_budget.REFERENCE_SECONDS)
    assert processor_budget.main([spent, "100"]) == code
    assert ("above its budget" in capsys.readouterr().out) == bool(code)
