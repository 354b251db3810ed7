"""What `make bare` says of a step, without a machine."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_of_three(number):
    if number:
        pytest.skip("no nbd module for this kernel")

@pytest.mark.skipif(True, reason="no GPU here")
def test_of_one(): ...
"""


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The program, with a cache of its own."""
    monkeypatch.syspath_prepend(str(HERE))
    spec = importlib.util.spec_from_file_location("bare_program", HERE / "__main__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HOME", tmp_path / "cache")
    return module


def played(name: str, output: str, code: int) -> Any:
    """A machine on which any command prints this, and ends with this code."""

    def run(_line: str, log: Path, **_options: object) -> int:
        log.write_text(output)
        return code

    return SimpleNamespace(name=name, run=run)


def test_what_was_skipped_is_named_after_a_step_that_passed(
    bare: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_played.py").write_text(TESTS)
    argv = [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", "test_played.py"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    output = done.stdout
    assert "3 skipped" in output
    assert bare.passes(played("debian12", output, 0), "test")
    said = [line.partition("debian12: ")[2] for line in capsys.readouterr().out.splitlines()]
    assert [line for line in said if line.startswith("SKIPPED")] == [
        "SKIPPED [2] test_played.py:7: no nbd module for this kernel",
        "SKIPPED [1] test_played.py:9: no GPU here",
    ]
    assert bare.passes(played("debian12", "1 passed\n", 0), "test")
    assert "debian12: pytest skipped nothing" in capsys.readouterr().out


def test_a_step_that_fails_shows_the_end_of_its_log(bare: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert not bare.passes(played("debian12", "SKIPPED [1] a.py:1: no GPU\nFAILED b.py\n", 1), "test")
    assert capsys.readouterr().out.count("SKIPPED [1]") == 1, "as part of the log"
