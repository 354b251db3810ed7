"""Wait in a test for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(what: Callable[[], Any], seconds: float = 60.0, message: str | Callable[[], str] = "waited in vain") -> Any:
    """Call `what` until its result is true, and return that; fails with the message after so many seconds. After a call
    that took long, such as one of a verb, it waits longer: what is waited for needs the processors."""
    deadline = time.monotonic() + seconds
    while True:
        asked = time.monotonic()
        if found := what():
            return found
        answered = time.monotonic()
        if answered > deadline:
            raise AssertionError(f"{message if isinstance(message, str) else message()}: not within {seconds:g} s")
        time.sleep(min(1.0, max(0.02, 2 * (answered - asked))))
