"""A pytest plugin: a run of the tests fails when it takes more processor time than it may.

The clock says how busy the machine was, processor seconds say what the tests cost everybody from now on. What they
cost on this machine is compared with a fixed piece of work that is timed beside them: a slow machine has more seconds.
Only processes of which pytest has seen the end count; real machines do not. A test with the mark `counted_apart` has a
line of its own and nothing of the budget: what it costs depends on a cache that outlives the run.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from typing import Any

import pytest

REFERENCE_SECONDS = 0.045
"""Processor seconds of `probe` on the machine for which the budgets were set (two cores, idle)."""
_SPENT = "processor_seconds"
_SLOWEST = 10
_PROBES = 5

_spent_by_workers: list[float] = []
_spent_by_test: list[tuple[float, str]] = []
_spent_apart: list[tuple[float, str]] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --processor-budget."""
    parser.addoption(
        "--processor-budget",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="processor seconds that all tests together may take, on the machine of reference; 0: no bound",
    )


def probe() -> float:
    """The processor seconds of a fixed piece of work, the best of a few: Python's own, and hashing."""
    seconds = []
    for _ in range(_PROBES):
        began = time.process_time()
        total = 0
        for number in range(1_000_000):
            total += number & 7
        hashlib.sha256(bytes(16 << 20)).digest()
        seconds.append(time.process_time() - began)
    return min(seconds)


def verdict(spent: float, budget: float) -> tuple[list[str], bool]:
    """Lines that say how much of a budget was spent, and whether it was enough. Both in processor seconds; the budget
    is that of the machine of reference."""
    slowness = max(1.0, probe() / REFERENCE_SECONDS)
    allowed = budget * slowness
    lines = [
        f"processor time: {spent:.0f} s of {allowed:.0f} s ({budget:.0f} s on a machine {slowness:.2f} times as fast)"
    ]
    if spent > allowed:
        lines.append("above its budget: take as much out as was put in, or move it to make soak")
    return lines, spent <= allowed


def _now() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Remember what each test has taken."""
    before = _now()
    yield
    tests = _spent_apart if item.get_closest_marker("counted_apart") else _spent_by_test
    tests.append((_now() - before, item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over what a worker of pytest-xdist has counted."""
    told = getattr(node, "workeroutput", {}).get(_SPENT)
    if told is not None:
        _spent_by_workers.append(float(told["total"]))
        _spent_by_test.extend((float(seconds), str(name)) for seconds, name in told["tests"])
        _spent_apart.extend((float(seconds), str(name)) for seconds, name in told["apart"])


@pytest.hookimpl(hookwrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Any:
    """Fail a run that has taken too much. Its workers are gone by then, and have told what they took."""
    yield
    slowest = sorted(_spent_by_test, reverse=True)[:_SLOWEST]
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_SPENT] = {"total": _now(), "tests": slowest, "apart": _spent_apart}
        return
    budget = session.config.getoption("--processor-budget")
    if not budget:
        return

    # A controller's children are its workers, whose seconds it has in `_now` once they have ended.
    spent = max(_now(), sum(_spent_by_workers)) - sum(seconds for seconds, _ in _spent_apart)
    lines, is_within = verdict(spent, budget)
    lines += [f"  {seconds:6.1f} s  {name}" for seconds, name in slowest]
    lines += [f"apart from its budget: {seconds:.0f} s of {name}" for seconds, name in _spent_apart]
    session.config.stash[_line] = lines
    if not is_within:
        session.exitstatus = max(int(session.exitstatus), int(pytest.ExitCode.TESTS_FAILED))


_line = pytest.StashKey[list[str]]()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say it last, where it is seen."""
    for line in config.stash.get(_line, []):
        print(line)


def main(argv: list[str]) -> int:
    """`processor_budget.py SPENT BUDGET`: say how much of a budget was spent; returns 1 if it was not enough."""
    lines, is_within = verdict(float(argv[0]), float(argv[1]))
    print("\n".join(lines))
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
