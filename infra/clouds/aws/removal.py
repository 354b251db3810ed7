"""Removes a resource from AWS, once nothing holds it any more. One that is already gone is no error."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from botocore.exceptions import ClientError

from infra.clouds.aws import api

WAIT_S = 600.0
"""Seconds to wait for what is still in use by a resource that is ending, such as a disk or an address."""
POLL_S = 5.0
HELD = (
    *("DependencyViolation", "VolumeInUse", "IncorrectState", "InvalidIPAddress.InUse", "InvalidAddress.InUse"),
    *("InvalidSnapshot.InUse", "InvalidPlacementGroup.InUse", "DeleteConflict"),
    *("ResourceInUse", "OperationAborted", "InvalidNetworkInterface.InUse"),
)
"""Error codes that mean "not yet"."""


def is_gone(error: Exception) -> bool:
    """Whether the error says that the resource does not exist."""
    word = api.code(error)
    gone = ("NoSuchEntity", "NoSuchBucket", "InvalidPlacementGroup.Unknown", "InvalidAMIID.Unavailable")
    return "NotFound" in word or word in (*gone, "Gateway.NotAttached")


def until_free(remove: Callable[[], object], held: Collection[str] = HELD) -> None:
    """Repeat `remove` while it fails with one of the codes in `held`, for at most WAIT_S."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            remove()
            return
        except api.FAILURES as error:
            if is_gone(error):
                return
            if api.code(error) not in held or time.monotonic() > end:
                raise
        time.sleep(POLL_S)


def call(client: Any, operation: str, held: Collection[str] = HELD, **arguments: Any) -> None:
    """One call of boto3, repeated in the same way. Also raises the errors that some calls return as a success."""

    def remove() -> None:
        answer = getattr(client, operation)(**arguments)
        for failed in (answer or {}).get("Unsuccessful") or []:
            raise ClientError({"Error": failed["Error"]}, operation)

    until_free(remove, held)


def wait(client: Any, waiter: str, **arguments: Any) -> None:
    """Wait with one of boto3's waiters, for at most WAIT_S."""
    pace = {"Delay": max(1, int(POLL_S)), "MaxAttempts": int(WAIT_S / max(1.0, POLL_S))}
    client.get_waiter(waiter).wait(WaiterConfig=pace, **arguments)
