"""Measure the network of a Kubernetes cluster as a job's ranks use it: an all-reduce over a pod on each machine.

It is a job of `fab launch`, made, started and supervised as every other is, whose program is the measurement. Nothing
is left of it if it goes well; else its log stays.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fabfile.backends.base import CannotStart, LogPart, Unreachable
from fabfile.backends.kubernetes import api as kube
from fabfile.backends.kubernetes import pods, reasons, start, view
from fabfile.backends.kubernetes.api import Api
from fabfile.backends.kubernetes.backend import KubernetesBackend
from fabfile.backends.kubernetes.errors import KubeError
from fabfile.backends.submission import Submission
from fabfile.check import launch, network_rules
from fabfile.check.launch import Heard, ProbeRun
from fabfile.check.verdict import Verdict, some
from fabfile.launchers.program import NODE, Program
from infra.inventory import KubeCluster, Node
from node.job import files

Object = dict[str, Any]

CHECK = "all-reduce"
NAME = "check"
"""The job is called NAME-NUMBER."""
STILL_S = 45.0
"""Seconds without any change of the pods after which a job that has not begun counts as stuck."""
PULL_S = 300.0
"""The same while a machine may be pulling the image, of 10 GB or more: as long as for the head pod."""
_LOOK_S = 2.0
"""Seconds between two looks at the pods."""
_TAKEN = 3
"""The step of a pod whose machine may be pulling its image."""
_GRACE_S = 2.0
"""Seconds that the ranks have to end when they are asked to: they keep nothing."""


@dataclass
class Followed:
    """What was heard of the job."""

    run: ProbeRun
    machines: dict[int, str]
    """By rank: where it has printed something."""
    said: str = ""
    """The last line that is no rank's measurement: the supervisor's, or an error."""


def verdict(cluster: KubeCluster) -> Verdict:
    """Run the job to its end, and judge it. KubeError, Exit."""
    backend = KubernetesBackend(cluster)
    with backend:
        code = start.launch_of(view.of(cluster), _submission(cluster, "")).code
        submission = _submission(cluster, f"{code}/launch")
        try:
            backend.prepare(submission)
            job = backend.submit(submission).id
        except CannotStart as error:
            return Verdict(CHECK, "warn", f"not tried: {error}", "fab jobs")
        found = None
        try:
            found = _judged(backend, job, _follow(backend, job))
        finally:  # also by Ctrl-C
            _end(backend, job, forget=found is None or found.level == "pass")
    return found


def _submission(cluster: KubeCluster, program: str) -> Submission:
    """The job, a process on each machine. `program`: the node program in pods."""
    argv = tuple(launch.all_reduce(program))
    return Submission(
        program=Program(argv=argv, name=NAME, per=NODE, grace=_GRACE_S),
        nodes=cluster.workers,
        time_limit=float(launch.NETWORK_S),
    )


def _end(backend: KubernetesBackend, job: str, *, forget: bool) -> None:
    """End the job and see to it that its pods go; `forget`: leave nothing else of it, either."""
    if forget:
        backend.forget(job)
        return
    backend.stop(job, now=True)
    backend.api.delete(kube.JOB, job)
    start.await_end(backend.api, job)


def _follow(backend: KubernetesBackend, job: str) -> Followed:
    """Read what the ranks say until they have measured, or one has failed or is silent, or none begins."""
    found, heard = Followed(ProbeRun(), {}), Heard(backend.kube.workers)
    waiting = Waiting(backend.api, job, backend.kube.workers)
    deadline = float("inf")
    try:
        for part in backend.log_alone(job):
            for event in _events(part, found):
                heard.hear(event)
                if event["event"] == "result":
                    return found
                if event["event"] == "error":
                    found.run.failed = launch.A_RANK_FAILED
                    deadline = min(deadline, time.monotonic() + launch.GRACE_S)
            if found.machines and deadline == float("inf"):
                deadline = time.monotonic() + launch.NETWORK_S
            if part.job is not None:
                found.run.failed = found.run.failed or part.job.reason or f"{job} is {part.job.state}"
            elif part.lines:
                continue  # more may have come meanwhile
            elif heard.is_any_late():
                found.run.failed = found.run.failed or launch.A_RANK_IS_SILENT
            elif time.monotonic() > deadline:
                found.run.failed = found.run.failed or "not ready in time"
            elif found.machines or not (why := waiting.stuck(found.said)):
                continue
            else:
                found.run.failed = why
            break
    except Unreachable as error:
        found.run.failed = found.run.failed or str(error)
    found.run.silent = heard.silent() if found.run.failed == launch.A_RANK_IS_SILENT else []
    return found


def _events(part: LogPart, found: Followed) -> Iterator[Object]:
    """The measurement's events of a part of the job's log."""
    for line in part.lines:
        event = files.parsed(line.text)
        if "event" in event and "rank" in event:
            found.run.events.append(event)
            found.machines[int(event["rank"])] = line.node
            yield event
        else:
            found.said = f"{line.node}: {line.text}"


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


def _judged(backend: KubernetesBackend, job: str, found: Followed) -> Verdict:
    """The verdict, with the machines that the pods were on as the nodes."""
    own = backend.api.list("Pod", {pods.JOB: job})
    addresses = {reasons.machine(pod): str((pod.get("status") or {}).get("podIP") or "") for pod in own}
    names = [found.machines.get(rank, f"rank {rank}") for rank in range(backend.kube.workers)]
    nodes = tuple(Node(name=name, private_ip=addresses.get(name) or name) for name in names)
    judged = network_rules.network(replace(backend.cluster, nodes=nodes), found.run)
    if judged.level == "pass":
        return judged
    text = judged.found
    for name, address in addresses.items():
        text = text.replace(address, name) if address else text
    if found.said and not found.run.of("result"):
        text = f"{text}; last line of {job}: {found.said}"
    return Verdict(CHECK, judged.level, text, f"fab logs {job}")
