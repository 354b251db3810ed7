"""Runs of the Pulumi program that tests share: each costs some tenths of a second, and no test changes one."""

from __future__ import annotations

from collections.abc import Mapping

from program_recorder import Kind, Ran, run


class RecordedRuns:
    """The runs of one program, by everything that decides what it declares."""

    def __init__(self) -> None:
        self._runs: dict[object, Ran] = {}

    def run(self, raw: Mapping[str, str], kind: Kind, *, stack: str, preview: bool = False, shared: bool = True) -> Ran:
        """Run the program with these keys, or take the run that it has had with them.

        `shared`: False where a test has replaced a part of the program; such a run is neither taken nor kept.
        """
        if not shared:
            return run(raw, kind, stack=stack, preview=preview)
        request = (type(kind), repr(vars(kind)), tuple(sorted(raw.items())), stack, preview)
        if request not in self._runs:
            self._runs[request] = run(raw, kind, stack=stack, preview=preview)
        return self._runs[request]
