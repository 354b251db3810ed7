"""Why the pods of a measurement on Kubernetes do not begin: how far each has come, and what it says."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from fabfile.backends.kubernetes import pods, reasons
from fabfile.backends.kubernetes.api import Api
from fabfile.backends.kubernetes.errors import KubeError
from fabfile.check.verdict import some

Object = dict[str, Any]

STILL_S = 45.0
"""Seconds without any change of the pods after which a job that has not begun counts as stuck."""
PULL_S = 300.0
"""The same while a machine may be pulling the image, of 10 GB or more: as long as for the head pod."""
_LOOK_S = 2.0
"""Seconds between two looks at the pods."""
_TAKEN = 3
"""The step of a pod whose machine may be pulling its image."""


class Waiting:
    """A job's pods until its ranks begin."""

    def __init__(self, api: Api, job: str, wanted: int) -> None:
        self._api, self._job, self._wanted = api, job, wanted
        self._reached: dict[str, int] = {}
        """By a pod's name: how far it has come. One that is made again and again, as on a machine that is cut off, has
        not come further by that."""
        self._since = self._looked = time.monotonic()

    def stuck(self, said: str) -> str:
        """Why the job does not begin; empty while it may. To be called again and again, with the supervisor's last
        line. KubeError."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return ""
        self._looked = now
        there = self._api.list("Pod", {pods.JOB: self._job})
        for name, step in [("", int(bool(said))), *((str(pod["metadata"]["name"]), _step(pod)) for pod in there)]:
            if step > self._reached.get(name, -1):
                self._reached[name], self._since = step, now
        if now - self._since < (PULL_S if _TAKEN in self._reached.values() else STILL_S):
            return ""
        return f"no rank begins: {some(self._complaints(there)) or 'the pods say nothing'}"

    def _complaints(self, there: Sequence[Object]) -> Iterator[str]:
        """What each pod says that does not run, or does not find the first one, and that there are too few."""
        events = self._api.list("Event")
        if len(there) < self._wanted:
            why = reasons.pending([], events, self._job, self._wanted)
            yield f"{len(there)} of {self._wanted} pods are there{why and f': {why}'}"
        for pod in sorted(there, key=lambda pod: str(pod["metadata"]["name"])):
            name = str(pod["metadata"]["name"])
            where = f"{reasons.machine(pod) or 'no machine'} (pod {name})"
            if reasons.phase(pod) == "Pending":
                yield f"{where}: {reasons.of_pod(pod, events) or 'is not started there'}"
                continue
            try:
                last = self._api.log(name, 1)
            except KubeError as error:
                yield f"{where}: {error}"
                continue
            if last:
                yield f"{where}: {last[-1]}"


def _step(pod: Object) -> int:
    """How far a pod has come: it is there, has a machine, is taken by that one's kubelet, runs."""
    if reasons.phase(pod) != "Pending":
        return _TAKEN + 1
    return _TAKEN if "startTime" in (pod.get("status") or {}) else _TAKEN - 1 if reasons.machine(pod) else _TAKEN - 2
