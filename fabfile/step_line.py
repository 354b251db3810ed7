"""The live line of a job's steps on a terminal: bar, step, loss, speed, the time that is left and the cost."""

from __future__ import annotations

import re
from collections import deque
from statistics import fmean

from fabfile.output import one_line

_LOG_LINE = re.compile(
    r"step (?P<step>\d+)/(?P<steps>\d+) loss (?P<loss>\S+) .*?"
    r"(?P<speed>\d+) tok/s (?P<seconds>[\d.e+-]+) s/step eta \S+(?P<cost> \$[\d.]+)?"
)
"""A step as training/metrics.py: progress writes it."""
_LONGEST_BAR, _SHORTEST_BAR = 30, 5  # characters
_STEPS_OF_MEAN = 10
"""Speed and time left are a mean of so many steps: a single one's jumps with whatever else the machine does."""


class StepLine:
    """Makes the live line from the log's lines of one job."""

    def __init__(self) -> None:
        self._speeds: deque[float] = deque(maxlen=_STEPS_OF_MEAN)
        self._seconds: deque[float] = deque(maxlen=_STEPS_OF_MEAN)
        self._share: float | None = None
        self._words = ("", "", "", "", "")

    def read(self, text: str) -> None:
        """Take a step from its line in the log. A line of another form, of a program that is not ours, is shown as it
        is."""
        line = _LOG_LINE.match(text)
        if line is None:
            self._share = None
            self._words = (one_line(text), "", "", "", "")
            return

        step, steps = int(line["step"]), int(line["steps"])
        self._speeds.append(float(line["speed"]))
        self._seconds.append(float(line["seconds"]))
        self._share = min(1.0, step / max(1, steps))
        self._words = (
            f"{step}/{steps}",
            f"loss {line['loss']}",
            f"{fmean(self._speeds):,.0f} tokens/s",
            f"{_duration(max(0, steps - step) * fmean(self._seconds))} left",
            (line["cost"] or "").strip(),
        )

    def text(self, columns: int) -> str:
        """The line for a terminal of so many columns. On a narrow one the cost goes first, then the speed, and the bar
        gets shorter. The last column stays free: some terminals begin a new line after it."""
        step, loss, speed, left, cost = self._words
        room = max(1, columns - 1)
        for words in ((step, loss, speed, left, cost), (step, loss, speed, left), (step, loss, left)):
            line = "  ".join(word for word in words if word)
            if len(line) + _SHORTEST_BAR + len("[] ") <= room:
                break

        bar = min(_LONGEST_BAR, room - len(line) - len("[] "))
        if self._share is not None and bar >= _SHORTEST_BAR:
            line = f"[{'#' * int(self._share * bar):{bar}}] {line}"
        return line[:room]


def _duration(seconds: float) -> str:
    """45s, 3m07s, 2h05m: to the second below an hour, as somebody waits for the end."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
