"""Wait in a test for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(what: Callable[[], Any], seconds: float = 60.0, message: str | Callable[[], str] = "waited in vain") -> Any:
    """Call `what` until its result is true, and return that; fails with the message after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{message if isinstance(message, str) else message()}: not within {seconds:g} s")
        time.sleep(0.02)
    return found
