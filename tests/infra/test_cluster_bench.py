"""The bench of the local cluster, without machines: what it ends with."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"


class PlayedProject:
    """A project whose commands take no time and are noted."""

    ran: ClassVar[list[str]] = []

    def __init__(self, _root: Path, stack: str, engine: str, _cidr: str) -> None:
        self.stack, self.engine, self.env = stack, engine, dict(os.environ)

    def fab(self, verb: str, *_words: str, **_options: object) -> None:
        self.ran.append(verb)

    def configure(self, **_keys: object) -> None: ...

    def clean(self) -> None: ...


@pytest.mark.parametrize("slow", ["", "preview", "up", "destroy"])
def test_a_row_above_its_bound_ends_the_bench_with_1_after_the_whole_table(
    slow: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    bench: Any = importlib.import_module("bench_cluster")

    def timed(work: Callable[[], object]) -> float:
        PlayedProject.ran.clear()
        work()
        return 1000.0 if PlayedProject.ran[0] == slow else 1.0

    for name, value in {"Project": PlayedProject, "timed": timed, "memory": lambda _project: ""}.items():
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr(bench, "by_hand", lambda *_: (1.0, 1.0))
    monkeypatch.setattr(bench.shutil, "which", lambda _name: None)
    monkeypatch.setattr(sys, "argv", ["bench"])
    assert bench.main() == int(bool(slow))
    table = capsys.readouterr().out
    assert table.count("  OVER\n") == {"": 0, "preview": 1}.get(slow, 2)
    assert "destroy, 16 nodes" in table
