"""A followed job on the screen: one live line on a terminal, each Nth step in a pipe, everything in `fab logs`."""

from __future__ import annotations

import os
import sys

import pytest

from fabfile.log_display import Shown
from fabfile.step_line import StepLine

STEP = "step {}/30 loss {:.3f} lr 5.9e-04 8192 tok/s 1 s/step eta {}s"
LINES = [
    ("node1", "-", "attempt 1 on node1, node2"),
    *(("node1", "0", STEP.format(n, 5 - n / 10, 30 - n)) for n in range(25)),
    ("node1", "0", STEP.format(25, 2.5, 5) + " val 2.400"),
    ("node2", "1", "checkpoint of step 25 written"),
    *(("node1", "0", STEP.format(n, 2.4, 30 - n)) for n in range(26, 31)),
    ("node1", "-", "SUCCEEDED"),
]


def show(every: int | None) -> None:
    shown = Shown(every)
    for node, rank, text in LINES:
        shown.line(node, rank, text)
    shown.close()


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, every: int | None, term: str = "xterm", columns: int = 80) -> str:
    """What a terminal of so many columns gets."""
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        show(every)
        monkeypatch.undo()
    got = b""
    try:
        while part := os.read(ours, 65536):
            got += part
    except OSError:
        pass  # the other end is closed, and everything is read
    return got.decode()


def screen(text: str) -> list[str]:
    """The lines that are left on a terminal: each `\\r\\x1b[K` begins its line anew."""
    return [line.rpartition("\r\x1b[K")[2] for line in text.replace("\r\n", "\n").split("\n") if line]


def test_a_terminal_has_one_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    got = on_a_terminal(monkeypatch, None)
    remaining = screen(got)
    assert [line.partition("] ")[2][:12] for line in remaining] == [
        "attempt 1 on",
        "step 25/30 l",
        "checkpoint o",
        "step 30/30 l",
        "SUCCEEDED",
    ]
    drawn = got.split("\r\x1b[K")
    assert "[###                           ] 3/30  loss 4.700  8,192 tokens/s  27s left" in drawn
    assert max(map(len, drawn[1].splitlines())) <= 80


def test_the_live_line_comes_back_below_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen before: from a validation to the next step a slow job had no line of where it is."""
    monkeypatch.setattr(sys.modules[__name__], "LINES", LINES[:28])
    *_, validation, checkpoint, live = screen(on_a_terminal(monkeypatch, None))
    assert " val 2.400" in validation and "checkpoint of step 25" in checkpoint
    assert live.endswith("] 25/30  loss 2.500  8,192 tokens/s  5s left")


def test_what_it_ends_with_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "LINES", LINES[:5])
    got = on_a_terminal(monkeypatch, None)
    assert screen(got)[-1].startswith("[###") and " 3/30 " in screen(got)[-1]
    assert got.endswith("\n"), "a shell's prompt, or the message after Ctrl-C, starts on a line of its own"


@pytest.mark.parametrize("columns", [100, 80, 60, 40, 20, 1])
def test_the_live_line_fits_a_terminal_of_any_width(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "LINES", [LINES[4]])
    (live,) = screen(on_a_terminal(monkeypatch, None, columns=columns))
    assert len(live) < max(2, columns)
    assert ("tokens/s" in live) == (columns >= 60), "the speed goes before loss and time"
    assert ("left" in live and "[" in live) == (columns >= 40)


def test_speed_and_time_left_are_a_mean_of_the_last_steps() -> None:
    """One step beside a burst of other work must not make minutes of seconds."""
    line = StepLine()
    for step, seconds in enumerate((1.0, 1.0, 1.0, 5.0), start=1):
        line.read(f"step {step}/14 loss 4.000 lr 1e-03 {3000 / seconds:.0f} tok/s {seconds} s/step eta 9s $0.12")
    assert line.text(100).endswith("] 4/14  loss 4.000  2,400 tokens/s  20s left  $0.12")
    assert "$" not in line.text(55) and "tokens/s" in line.text(55)


def test_steps_of_another_program_are_a_live_line_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "LINES", [("node1", "0", "step 3/30 loss 2.5 \x1b[31mred " + "x" * 99)])
    (live,) = screen(on_a_terminal(monkeypatch, None))
    assert live.startswith("step 3/30 loss 2.5 \\x1b[31mred xxx") and len(live) == 79


@pytest.mark.parametrize(("every", "term"), [(1, "xterm"), (None, "dumb")])
def test_every_step_where_it_is_asked_for_or_the_terminal_cannot(
    every: int | None, term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = on_a_terminal(monkeypatch, every, term)
    assert "\x1b" not in got and len(got.splitlines()) == len(LINES)


def test_a_pipe_gets_all_or_each_nth(capsys: pytest.CaptureFixture[str]) -> None:
    show(None)
    assert len(capsys.readouterr().out.splitlines()) == len(LINES)
    show(10)
    steps = [line.split()[3] for line in capsys.readouterr().out.splitlines() if "rank=0] step" in line]
    assert steps == ["0/30", "10/30", "20/30", "25/30", "30/30"], "the validation and the last one among them"


def test_a_stranger_among_the_nodes_is_explained_once(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Shown()
    for _ in range(3):
        shown.line("node1", "-", "Host key verification failed.")
    assert capsys.readouterr().err.count("run: fab wait") == 1
