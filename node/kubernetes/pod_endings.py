"""Why pods of a job end, as Kubernetes' API says it: drained, preempted, killed for want of memory.

The training operator deletes a pod that has failed as soon as the API says why, and makes another one in its place. So
the job's pods are watched, from where the last supervisor of the job has watched them: the first pod, too, may have
been lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from node.job import files
from node.job.endings import WANT_OF_MEMORY
from node.kubernetes.api import DEAD_MACHINE, Api, ApiError, ChangedError, RefusedError
from node.kubernetes.identity import Pod

_FILE = "pods.json"
"""In a job's directory: {"version": the API's resourceVersion up to which its pods have been watched}."""
_AGAIN = 2.0
_POLL = 0.1
_OOM = "OOMKilled"
_DISRUPTIONS = {
    "EvictionByEvictionAPI": "its pod is evicted, as when its machine is drained",
    "PreemptionByScheduler": "its pod makes place for one of a higher priority",
    "DeletionByTaintManager": "its machine has a taint: Kubernetes takes it for lost, or keeps pods off it",
    "TerminationByKubelet": "its kubelet ends its pod",
    "DeletionByPodGC": "its machine is no machine of the cluster any more",
    DEAD_MACHINE: "its machine's kubelet does not answer",
}
"""By the reason of the condition DisruptionTarget, which Kubernetes sets before it ends a pod."""


class PodEndings:
    """Watches the pods of a job, in a thread of its own, for as long as this process lives."""

    def __init__(self, api: Api, run_dir: Path, say: Callable[[str], None]) -> None:
        """`say` gets a line if the API refuses that."""
        self._api, self._run_dir, self._say = api, run_dir, say
        self._why: dict[tuple[str, str], str] = {}
        """By a pod's name and address: the operator gives the same name to the one in its place."""
        self._version = str(files.read(run_dir / _FILE).get("version", "0"))
        self._watches = False
        threading.Thread(target=self._run, daemon=True).start()

    def why(self, pod: Pod, seconds: float = 0.0) -> str:
        """Why this pod ends, or has ended; empty: nothing is known. Of one that has just gone the API may have to be
        waited for, for so long."""
        deadline = time.monotonic() + seconds
        while (pod.name, pod.ip) not in self._why and self._watches and time.monotonic() < deadline:
            time.sleep(_POLL)
        return self._why.get((pod.name, pod.ip), "")

    def _run(self) -> None:
        refused = ""
        while True:
            self._watches = True
            try:
                for _, found in self._api.watch(self._run_dir.name, self._version):
                    self._take(found)
                continue
            except ChangedError:  # that is too long ago
                self._version = "0"
            except RefusedError as error:
                if refused != str(error):
                    refused = str(error)
                    self._say(f"warning: why pods of this job end is not known: {error}")
            except (ApiError, OSError):  # who looks for dead machines says so, as long as that matters
                pass
            self._watches = False
            time.sleep(_AGAIN)

    def _take(self, found: Mapping[str, Any]) -> None:
        self._version = str(found["metadata"]["resourceVersion"])
        files.write(self._run_dir / _FILE, {"version": self._version})
        pod = str(found["metadata"].get("name")), str((found.get("status") or {}).get("podIP"))
        why = why_ends(found)
        if not why:
            self._why.pop(pod, None)  # another one has its name and address now
        elif pod not in self._why or _OOM in why:
            self._why[pod] = why


def why_ends(pod: Mapping[str, Any]) -> str:
    """Why a pod ends, or has ended, from its object; empty: it does not."""
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("reason") == _OOM:
            return f"its pod {WANT_OF_MEMORY} ({_OOM})"
    for one in status.get("conditions") or ():
        if one.get("type") == "DisruptionTarget" and one.get("status") == "True":
            said = _DISRUPTIONS.get(one.get("reason") or "", f"its pod is ended: {one.get('reason')}")
            more = status.get("message") or ""  # of a kubelet that lacks memory or disk
            return " ".join(f"{said}{': ' if more else ''}{more}".split())
    if status.get("reason"):
        return " ".join(f"its pod failed: {status['reason']}: {status.get('message') or ''}".rstrip(": ").split())
    return "its pod is deleted" if pod["metadata"].get("deletionTimestamp") else ""
