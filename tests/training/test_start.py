"""A rank's start: the modules that take seconds to import are imported without looking for garbage among them."""

from __future__ import annotations

import gc
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from training import train


class Slow(ModuleType):
    """A module that notes whether garbage was collected while something was imported from it."""

    def __init__(self, name: str, seen: dict[str, bool], **inside: Any) -> None:
        super().__init__(name)
        self._seen, self._inside = seen, inside

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._inside:
            raise AttributeError(name)
        self._seen[name] = gc.isenabled()
        return self._inside[name]


def test_garbage_is_not_looked_for_while_torch_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, bool] = {}

    def join(_timeout: int) -> None:
        seen["joining"] = gc.isenabled()
        raise ConnectionError("nobody came")

    monkeypatch.setitem(sys.modules, "training.parallel.ranks", Slow("ranks", seen, join=join))
    monkeypatch.setitem(sys.modules, "training.beginning", Slow("beginning", seen, Failed=RuntimeError))
    monkeypatch.setitem(sys.modules, "training.loop", Slow("loop", seen, Loop=object))
    monkeypatch.setattr(train, "StopRequest", SimpleNamespace)
    assert train._run(cast("Any", SimpleNamespace(train=SimpleNamespace(timeout=1))), resume=False) == 1
    assert capsys.readouterr().err == "error: nobody came\n"
    assert seen == {"Failed": False, "Loop": False, "join": False, "joining": True}
    assert gc.isenabled() and gc.get_freeze_count() > 0
    gc.unfreeze()
