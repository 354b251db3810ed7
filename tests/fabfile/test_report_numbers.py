"""`fab report`: its numbers, and its charts where no script runs."""

from __future__ import annotations

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


POINTS = st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=9)


@given(st.lists(POINTS, min_size=1, max_size=4), st.booleans())
def test_an_outline_is_within_its_frame(every: list[list[tuple[float, float]]], from_zero: bool) -> None:
    lines = [chart.ChartLine(f"line{i}", points, "a") for i, points in enumerate(every)]
    drawn = chart.outline(chart.Chart(title="t", unit="u", lines=lines, from_zero=from_zero))["lines"]
    places = [tuple(map(float, place.split(","))) for _, points, _ in drawn for place in points.split()]
    assert len(places) == sum(map(len, every))
    assert all(0 <= x <= chart.WIDTH and 0 <= y <= chart.HEIGHT for x, y in places)


def test_an_outline_says_what_its_ends_are() -> None:
    line = chart.ChartLine("training", [(1, 9.0), (20, 3.5), (400, 2.25)], "a")
    marks = [chart.Mark(0, 210, "restart"), chart.Mark(0, 400, "checkpoint")]
    made = chart.Chart(title="Loss", unit="nats", lines=[line], form=numbers.fixed, marks=marks, begin=20)
    found = chart.outline(made)
    assert found["axes"] == "Across: steps 20 to 400. Up: 2.250 to 3.500."
    assert found["lines"] == [
        ("a", "0.0,0.0 1000.0,300.0", "training: from 3.500 to 2.250"),
        ("restart", "500.0,0.0 500.0,300", ""),
        ("checkpoint", "1000.0,288.0 1000.0,300", ""),
    ]
