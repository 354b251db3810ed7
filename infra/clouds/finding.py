"""Results of the checks of a cloud account: one line each, with the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "failed", "undecided"]


@dataclass(frozen=True)
class Finding:
    """The result of one check of `fab check --account`."""

    check: str
    state: State
    detail: str
    mend: str = ""
    """The command or link that repairs it; empty only for `ok`."""

    def __post_init__(self) -> None:
        if (self.state == "ok") != (not self.mend):
            raise ValueError(f"{self.check}: {self.state} with mend = {self.mend!r}")
