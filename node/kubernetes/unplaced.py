"""The pods of a job that find no machine. Nobody waits long for them; for the first one another one makes place.

In the first pod the supervisor runs. If its machine died and no other one is free, one of the job's other pods ends.
The first pod, which has waited longer, gets its machine, and the job goes on with a pod less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from node.kubernetes.api import Api, ApiError, PodState
from node.kubernetes.identity import Pod

PATIENCE = 8.0
"""Seconds that a pod may be without a machine; where one is free it is without for a moment, too."""
_POLL = 1.0
"""Seconds between two questions to the API."""


class Unplaced:
    """What the API says of a job's pods that have no machine."""

    def __init__(self, api: Api, job: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._job, self._clock = api, job, clock
        self._pods: Sequence[PodState] = ()
        self._since: dict[str, float] = {}  # uid of a pod without a machine -> since when
        self._looked = -_POLL

    def have_no_machine(self, numbers: Collection[int]) -> bool:
        """Whether all pods with these numbers are there and find no machine. To be called again and again."""
        self._look()
        return self._are_late(numbers)

    def _are_late(self, numbers: Collection[int]) -> bool:
        now = self._clock()
        late = {pod.index for pod in self._pods if now - self._since.get(pod.uid, now) > PATIENCE}
        return bool(numbers) and late >= set(numbers)

    def need(self, own: Pod, there: Sequence[PodState]) -> bool:
        """Whether this pod has to end for the first one: one does, that with the highest number. To be called again and
        again while there is no supervisor, with the job's pods."""
        self._take(there)
        if not self._are_late([0]):
            return False
        return own.index == max((pod.index for pod in self._pods if pod.machine and not pod.overdue), default=-1)

    def _look(self) -> None:
        now = self._clock()
        if now - self._looked < _POLL:
            return
        self._looked = now
        try:
            self._take(self._api.pods(self._job))
        except ApiError:  # who looks for dead machines says so
            self._take(())

    def _take(self, there: Sequence[PodState]) -> None:
        now, self._pods = self._clock(), there
        self._since = {pod.uid: self._since.get(pod.uid, now) for pod in self._pods if not pod.machine}
