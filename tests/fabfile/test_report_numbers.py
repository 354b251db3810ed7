"""`fab report`: its numbers, axes and the places of names."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabfile.report import chart, numbers


@pytest.mark.parametrize(
    "form, value, text",
    [
        *[(numbers.count, v, t) for v, t in ((1_234_567, "1.2 M"), (9830, "9,830"), (98304, "98.3 k"), (9e9, "9.0 B"))],
        *[(numbers.count, v, t) for v, t in ((0, "0"), (999_960, "1.0 M"), (1.25e8, "125 M"), (None, "\N{EN DASH}"))],
        *[
            (numbers.span, v, t)
            for v, t in ((200, "3 m 20 s"), (0.42, "0.42 s"), (59.7, "1 m 0 s"), (12000, "3 h 20 m"))
        ],
        *[(numbers.span, v, t) for v, t in ((0.0012, "1.2 ms"), (7.04, "7.0 s"), (187_200, "2 d 4 h"), (0, "0 s"))],
        *[(numbers.money, v, t) for v, t in ((0, "$0.00"), (0.001, "under $0.01"), (1234.5, "$1,234.50"))],
        *[(numbers.percent, v, t) for v, t in ((0.71, "71 %"), (0.004, "0.4 %"), (1e-5, "under 0.1 %"), (0, "0 %"))],
        *[(numbers.small, v, t) for v, t in ((6e-4, "6\N{MULTIPLICATION SIGN}10⁻⁴"), (0.05, "0.05"), (0, "0"))],
        *[(numbers.plain, v, t) for v, t in ((12345, "12,345"), (3.25, "3.25"), (0.71, "0.71"), (200, "200"))],
        *[(numbers.moment, v, t) for v, t in ((1_763_716_000, "2025-11-21 09:06 UTC"), (1e30, "\N{EN DASH}"))],
    ],
)
def test_numbers_as_a_person_writes_them(form: Any, value: float | None, text: str) -> None:
    assert form(value) == text


def test_changes() -> None:
    assert numbers.change(100, 112) == "+12 %"
    assert numbers.change(2.5, 2.49) == "\N{MINUS SIGN}0.4 %"
    assert numbers.change(10, 81) == "\N{MULTIPLICATION SIGN}8.1"
    assert numbers.change(3, 3) == "same"
    assert (numbers.change(0, 3), numbers.change(1, 0), numbers.change(None, 3)) == ("", "", "")


@given(st.floats(-1e12, 1e12), st.floats(-1e12, 1e12))
def test_ticks_enclose_their_values(one: float, two: float) -> None:
    low, high = sorted((one, two))
    found = numbers.ticks(low, high)
    slack = 1e-6 * max(abs(low), abs(high), 1e-300)
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert 2 <= len(found) <= 12
    assert found == sorted(set(found))


def test_an_axis_is_in_one_unit() -> None:
    assert numbers.axis([0, 5000, 10000]) == ["0", "5 k", "10 k"]
    assert numbers.axis([2, 2.5, 3]) == ["2", "2.5", "3"]
    times = "\N{MULTIPLICATION SIGN}"
    assert numbers.axis([0, 2e-4, 4e-4]) == ["0", f"2{times}10⁻⁴", f"4{times}10⁻⁴"]


def test_names_at_the_ends_of_lines_do_not_overlap() -> None:
    lines = [chart.ChartLine(f"line{i}", [(0, 1.0), (10, 2.0 + i / 1000)], "a") for i in range(5)]
    tops = [top for top, _, _ in chart.Drawing(chart.Chart(title="t", unit="u", lines=lines)).names()]
    assert len(tops) == 5
    assert all(below - above > 14 for above, below in pairwise(tops))
    assert tops[0] > 0
    assert tops[-1] < 100
