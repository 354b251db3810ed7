"""Puts objects into a new Kubernetes cluster, and waits until what runs is ready."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from infra.clouds.kube_client import ApiError, Client, Object
from infra.errors import OperationError, say

LETS_IN = 300.0
"""Seconds until the API must take what it is given: on EKS an access entry counts after a minute or so."""
READY = 600.0
"""Seconds until all that runs must be ready: images are pulled, and the operator makes its certificate."""
POLL = 5.0
_LATER = (0, 401, 403, 404, 409, 429, 500, 502, 503, 504)
"""Answers of an API that is not ready yet, or does not know a definition that was applied just now; 0: none."""


def apply(
    client: Client,
    everything: Sequence[Object],
    to: str,
    check: Callable[[], None],
    *,
    hint: str = "",
    poll: float | None = None,
) -> None:
    """Apply objects in this order, and wait until what runs is ready. Raises OperationError, with `hint` if the API did
    not answer. `to`: the cluster's name, for a message; `check` is called while waiting; `poll`: seconds between two
    tries, POLL if None."""
    until, poll = time.monotonic() + LETS_IN, POLL if poll is None else poll
    for one in everything:
        _patiently(client, one, until, check, hint, poll)
    say(f"applied {len(everything)} objects to {to}")
    _await(client, [one for one in everything if one["kind"] in ("DaemonSet", "Deployment")], check, poll)


def _patiently(client: Client, one: Object, until: float, check: Callable[[], None], hint: str, poll: float) -> None:
    """Apply an object; again and again until the time `until` while the API is not ready for it."""
    while True:
        check()
        try:
            client.apply(one)
            return
        except ApiError as error:
            if error.code not in _LATER or time.monotonic() > until:
                more = "" if error.code else hint
                raise OperationError(f"{one['kind']} {one['metadata']['name']}: {error}{more}") from None
        time.sleep(poll)


def _await(client: Client, running: Sequence[Object], check: Callable[[], None], poll: float) -> None:
    """Wait until each has its pods ready. Raises OperationError, naming those that have not."""
    until = time.monotonic() + READY
    while late := [text for one in running if (text := _lacks(client, one))]:
        check()
        if time.monotonic() > until:
            raise OperationError(f"not ready after {READY:.0f} s: {'; '.join(late)}")
        time.sleep(poll)


def _lacks(client: Client, one: Object) -> str:
    """What it lacks, with the command that shows why; empty when it is ready."""
    kind, name, namespace = one["kind"], one["metadata"]["name"], one["metadata"]["namespace"]
    try:
        found = client.get(one)
    except ApiError as error:
        return f"{kind} {name}: {error}"
    status = found.get("status", {})
    if kind == "DaemonSet":
        ready, wanted = status.get("numberReady", 0), status.get("desiredNumberScheduled", 0)
    else:
        ready, wanted = status.get("readyReplicas", 0), found["spec"].get("replicas", 1)
    seen = status.get("observedGeneration") == found["metadata"].get("generation")
    if seen and ready >= wanted > 0:
        return ""
    return f"{kind} {name}: {ready} of {wanted} pods ready (kubectl -n {namespace} describe {kind.lower()} {name})"
