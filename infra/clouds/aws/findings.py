"""How a check of the account becomes a Finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infra.clouds.aws import api, machine_types
from infra.clouds.aws.names import region
from infra.clouds.finding import Finding, State
from infra.config.settings import Settings
from infra.errors import OperationError


class Unfit(Exception):
    """A check has found something wrong, or cannot decide. `mend`: what repairs it, or where to look."""

    def __init__(self, detail: str, mend: str, state: State = "failed") -> None:
        super().__init__(detail)
        self.mend, self.state = mend, state


def judged(check: str, look: str) -> Callable[[Callable[..., str]], Callable[..., Finding]]:
    """Make a check of a function that returns what is well, or raises Unfit. `look`: its mend if AWS fails."""

    def decorate(ask: Callable[..., str]) -> Callable[..., Finding]:
        def judge(settings: Settings, *arguments: Any) -> Finding:
            try:
                return Finding(check, "ok", ask(settings, *arguments))
            except Unfit as unfit:
                return Finding(check, unfit.state, str(unfit), unfit.mend)
            except (OperationError, *api.FAILURES) as error:
                mend = look.format(settings=settings, type=machine_types.name_of(settings), region=region(settings))
                return Finding(check, "undecided", api.one_line(error), mend)

        return judge

    return decorate
