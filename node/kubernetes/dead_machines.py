"""Frees the places of a job's pods that are on dead machines.

When a machine dies its pods stay, Running or Terminating, until somebody who knows that nothing runs there any more
deletes them by force; only then does the training operator make a pod in their place. We know it when the machine's
kubelet cannot be reached for a while, which is longer than a keeper without its head lets its ranks live (files.LEASE).
A pod of the job does this: the supervisor's, or, if that one's machine has died, another one.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from node.kubernetes.api import Api, ApiError, PodState
from node.kubernetes.identity import Pod

KUBELET = 10250
"""The TCP port of every machine's kubelet."""
DEAD = 10.0
"""Seconds without an answer of its kubelet after which a machine counts as dead."""
_REACH = 1.5
_POLL = 1.0


def answers(address: str, port: int = KUBELET) -> bool:
    """Whether the machine at this address is alive. It also is if it refuses the connection, as while its kubelet
    starts anew: that says its kernel."""
    try:
        socket.create_connection((address, port), timeout=_REACH).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


class DeadMachines:
    """Looks for pods of a job on machines that do not answer, and deletes them."""

    def __init__(self, api: Api, job: str, say: Callable[[str], None], reach: Callable[[str], bool] = answers) -> None:
        """`say` gets a line about each pod that is deleted, and why the API refuses that. `reach` as `answers`."""
        self._api, self._job, self._say, self._reach = api, job, say, reach
        self._hosts: dict[str, str] = {}  # machine -> its address
        self._silent: dict[str, float] = {}  # machine -> since when it has not answered
        self._complaint = ""

    def know(self, pods: Iterable[Pod]) -> None:
        """Take in the addresses of the machines that these pods are on. The API does not say that of a pod which has
        been put on a machine that was dead already."""
        self._hosts |= {pod.machine: pod.host_ip for pod in pods}

    def look(self, missing: Collection[int], patience: float = DEAD) -> None:
        """Delete those of the job's pods with these numbers whose machine has not answered for `patience` seconds. To
        be called about once a second while they are missing."""
        if not missing:
            self._silent.clear()
            return
        try:
            found = [pod for pod in self._api.pods(self._job) if pod.index in missing and pod.machine]
            self._hosts |= {pod.machine: pod.host_ip for pod in found if pod.host_ip}
            self._ask({pod.machine for pod in found if pod.machine in self._hosts})
            for pod in found:
                since = self._silent.get(pod.machine)
                if since is not None and time.monotonic() - since > patience:
                    self._delete(pod)
        except ApiError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                self._say(f"warning: pods of dead machines are not looked for: {error}")

    def _ask(self, machines: Collection[str]) -> None:
        names, now = sorted(machines), time.monotonic()
        with ThreadPoolExecutor(max(1, len(names))) as pool:
            alive = list(pool.map(lambda name: self._reach(self._hosts[name]), names))
        before = self._silent
        self._silent = {
            name: before.get(name, now) for name, answered in zip(names, alive, strict=True) if not answered
        }

    def _delete(self, pod: PodState) -> None:
        self._api.force_delete(pod)
        silent = time.monotonic() - self._silent[pod.machine]
        self._say(f"{pod.machine} has not answered for {silent:.0f} s: its pod {pod.name} is deleted")

    def watch(self, missing: Callable[[], Collection[int]]) -> None:
        """Look again and again, in a thread of its own, for as long as this process lives."""

        def work() -> None:
            while True:
                self.look(missing())
                time.sleep(_POLL)

        threading.Thread(target=work, daemon=True).start()
