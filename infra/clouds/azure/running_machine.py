"""Power state of a virtual machine, and waits for it, during `up`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from infra.clouds.azure.arm import COMPUTE, Arm, ArmError
from infra.errors import OperationError, UsageError

WAIT = 10.0
"""Seconds between polls."""


def power_state(view: dict[str, Any]) -> str:
    """running, stopped (still billed), deallocated ... by a machine's instance view; empty if Azure does not say."""
    states = [str(status.get("code", "")).partition("/") for status in view.get("statuses", [])]
    return next((state for kind, _, state in states if kind == "PowerState"), "")


class RunningMachine:
    """A machine, by its ARM id."""

    def __init__(self, identifier: str, check: Callable[[], None] = lambda: None) -> None:
        """`check` is called between polls, and raises when `up` was interrupted."""
        self.id = identifier
        self.arm = Arm()
        self._check = check

    def until(self, what: str, seconds: float, look: Callable[[], bool]) -> None:
        """Poll until `look` returns true. Raises ArmError if it does not within `seconds`."""
        deadline = time.monotonic() + seconds
        while not look():
            self._check()
            if time.monotonic() > deadline:
                raise ArmError(f"{what}: not within {seconds:.0f} s")
            time.sleep(WAIT)

    def power(self) -> str:
        """The power state that Azure reports now, see power_state."""
        return power_state(self.arm.get(f"{self.id}/instanceView", COMPUTE))

    def start(self, seconds: float = 900) -> None:
        """Start the machine if it is off, and wait until it runs."""
        if self.power() in ("deallocated", "stopped"):
            self.arm.post(f"{self.id}/start", COMPUTE)
            self.until(f"{self.id}: running", seconds, lambda: self.power() == "running")

    def deallocate(self, seconds: float = 900) -> None:
        """Deallocate the machine, which ends its billing, and wait until it is."""
        self.arm.post(f"{self.id}/deallocate", COMPUTE)
        self.until(f"{self.id}: deallocated", seconds, lambda: self.power() == "deallocated")


def stop_after_failure(machine: str) -> str:
    """Deallocate a machine, even after an interruption. Returns a line that says whether it still runs."""
    try:
        RunningMachine(machine).deallocate()
    except (OperationError, UsageError) as error:
        return f"the machine still runs and is billed: {error}\nstop it: az vm deallocate --ids {machine}"
    return "the machine was stopped (deallocated)"
