"""Frees the places of a job's pods that are on dead machines.

When a machine dies its pods stay, Running or Terminating, until somebody who knows that nothing runs there any more
deletes them by force; only then does the training operator, or Kubernetes' own Job, make a pod in their place. We know
it when the machine's kubelet cannot be reached for a while, which is longer than a keeper without its head lets its
ranks live (files.LEASE). A pod of the job does this: the supervisor's, or, if that one's machine has died, another one.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from node.kubernetes.api import Api, ApiError, ChangedError, PodState
from node.kubernetes.identity import Pod

KUBELET = 10250
"""The TCP port of every machine's kubelet."""
DEAD = 10.0
"""Seconds without an answer of its kubelet after which a machine counts as dead."""
_REACH = 1.5
POLL = 2.0
"""Seconds between two looks."""


Answer = Literal["kubelet", "kernel", ""]
"""Who answers at a machine's address: its kubelet; its kernel, which refuses, as while the kubelet starts; nobody."""


def answer(address: str, port: int = KUBELET) -> Answer:
    """Ask the machine at this address."""
    try:
        socket.create_connection((address, port), timeout=_REACH).close()
    except ConnectionRefusedError:
        return "kernel"
    except OSError:
        return ""
    return "kubelet"


class DeadMachines:
    """Looks for pods of a job on machines that do not answer, and deletes them."""

    def __init__(
        self, api: Api, job: str, own: Pod, say: Callable[[str], None], reach: Callable[[str], Answer] = answer
    ) -> None:
        """`own`: the pod that looks. `say` gets a line about each pod that is deleted, and why none can be. `reach` as
        `answer`."""
        self._api, self._job, self._own, self._say, self._reach = api, job, own, say, reach
        self._hosts = {own.machine: own.host_ip}  # machine -> its address
        self._silent: dict[str, float] = {}  # machine -> since when it has not answered
        self._complaint = ""
        self._told: set[str] = set()  # silent machines of which it is said that a pod there is deleted

    def know(self, pods: Iterable[Pod]) -> None:
        """Take in the addresses of the machines that these pods are on. The API does not say that of a pod which has
        been put on a machine that was dead already."""
        self._hosts |= {pod.machine: pod.host_ip for pod in pods}

    def look(self, missing: Collection[int], patience: float = DEAD) -> list[PodState]:
        """Delete those of the job's pods with these numbers whose machine has not answered for `patience` seconds. To
        be called every second or two while they are missing. Returns the job's pods; none if the API was not asked, or
        does not answer."""
        if not missing:
            self._silent.clear()
            return []
        there: list[PodState] = []
        try:
            there = self._api.pods(self._job)
            pods = [pod for pod in there if pod.machine]
            self._hosts |= {pod.machine: pod.host_ip for pod in pods if pod.host_ip}
            suspects = [pod for pod in pods if pod.index in missing and pod.machine in self._hosts]
            self._ask(suspects, {pod.machine for pod in pods})
            for pod in suspects:
                since = self._silent.get(pod.machine)
                if since is not None and time.monotonic() - since > patience:
                    self._delete(pod)
        except ApiError as error:
            self._complain(str(error))
        return there

    def _ask(self, suspects: Collection[PodState], known: Collection[str]) -> None:
        """Note which machines of the suspected pods do not answer. If none of the others of the job does either, it may
        be this pod that cannot reach them, as behind a firewall: then Kubernetes must have given the pod up, too."""
        names = sorted({self._own.machine, *known} & self._hosts.keys())
        with ThreadPoolExecutor(len(names)) as pool:
            answered = dict(zip(names, pool.map(lambda name: self._reach(self._hosts[name]), names), strict=True))
        # A machine without a kubelet is alive, but it ends no pod that Kubernetes has told it to end.
        silent = {
            pod.machine
            for pod in suspects
            if not answered[pod.machine] or (pod.overdue and answered[pod.machine] != "kubelet")
        }
        others = set(names) - silent
        witnesses = others - {self._own.machine} or others
        if silent and not any(answered[name] for name in witnesses):
            self._complain(f"no machine answers this pod at port {KUBELET}, its kubelet's")
            silent &= {pod.machine for pod in suspects if pod.overdue}
        now = time.monotonic()
        self._told -= {name for name in names if answered[name]}
        self._silent = {name: self._silent.get(name, now) for name in silent}

    def _complain(self, why: str) -> None:
        if why != self._complaint:
            self._complaint = why
            self._say(f"warning: pods of dead machines are not looked for: {why}")

    def _delete(self, pod: PodState) -> None:
        try:
            self._api.force_delete(pod)
        except ChangedError:
            return  # another pod of the job has been faster
        if pod.machine in self._told:  # until Kubernetes knows, too, it may put the next pod there
            return
        self._told.add(pod.machine)
        silent = time.monotonic() - self._silent[pod.machine]
        self._say(f"{pod.machine}'s kubelet has not answered for {silent:.0f} s: its pod {pod.name} is deleted")

    def watch(self, missing: Callable[[], Collection[int]]) -> None:
        """Look again and again, in a thread of its own, for as long as this process lives."""

        def work() -> None:
            while True:
                self.look(missing())
                time.sleep(POLL)

        threading.Thread(target=work, daemon=True).start()
