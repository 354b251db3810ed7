"""A check's verdict: one line with its level, its findings and, unless it passed, the command that mends it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fabfile.stacks import pulumi_cli

Level = Literal["pass", "warn", "fail"]
Trouble = Literal["warn", "fail"]
ORDER: tuple[Level, ...] = ("pass", "warn", "fail")
SHOWN = 4
"""Findings that a line lists; it only counts the rest."""
UNREACHED = "not reached"
"""Why a fact is missing, for a node that the check `reach` has already named."""


@dataclass
class Fact:
    """One fact, by node; `missing`: why a node has not reported it."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """One line of `fab check`."""

    check: str
    level: Level
    found: str
    mend: str = ""
    """The command that mends it; empty only on a pass."""

    def __post_init__(self) -> None:
        if (self.level == "pass") != (not self.mend):
            raise ValueError(f"{self.check}: a {self.level} with mend = {self.mend!r}")

    def line(self) -> str:
        """As `fab check` prints it: level, check, finding and mend, in one line whatever the finding has."""
        text = f"{self.level}  {self.check:<10}  {' '.join(self.found.split())}"
        return f"{text}; mend: {self.mend}" if self.mend else text


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. The worst problem of a check gives the check its level and its mend."""

    level: Trouble
    text: str
    mend: str


def judge(check: str, problems: Sequence[Problem], good: str) -> Verdict:
    """The verdict on a check with these problems; `good` is the finding if there are none."""
    if not problems:
        return Verdict(check, "pass", good)
    worst = max(problems, key=lambda problem: ORDER.index(problem.level))  # the first of the worst
    ranked = [worst, *(problem for problem in problems if problem is not worst)]
    return Verdict(check, worst.level, some(problem.text for problem in ranked), worst.mend)


def some(texts: Iterable[str], *, between: str = "; ") -> str:
    """The first SHOWN texts, and how many more there are."""
    listed = list(texts)
    if len(listed) > SHOWN + 1:  # "and 1 more" is no shorter than the text itself
        listed[SHOWN:] = [f"and {len(listed) - SHOWN} more"]
    return between.join(listed)


def summary(verdicts: Sequence[Verdict], seconds: float) -> str:
    """How many verdicts have each level, and the seconds that all took: the last line of `fab check`."""
    counts = [f"{sum(v.level == level for v in verdicts)} {level}" for level in ORDER]
    return f"{', '.join(counts)} in {seconds:.1f} s"


def next_step(verdicts: Sequence[Verdict], good: str = "fab run hostname") -> str:
    """The mend of the first failure, as later ones are often its consequence; else `good`, a first command to run."""
    return next((verdict.mend for verdict in verdicts if verdict.level == "fail"), good)


def of_account(stack: str) -> list[Verdict]:
    """`fab check --account`: is the cloud's account fit for the stack, before any node exists? Exit 2 for a stack that
    is local, or whose file cannot be used."""
    levels: dict[str, Level] = {"ok": "pass", "undecided": "warn", "failed": "fail"}
    findings = pulumi_cli.answer("clouds.account", stack or pulumi_cli.default_stack())
    return [Verdict(entry["check"], levels[entry["state"]], entry["detail"], entry["mend"]) for entry in findings]
