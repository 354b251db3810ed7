"""Measure the network of a Kubernetes cluster as a job's ranks use it: an all-reduce over a pod on each machine, by
gloo, and by NCCL where there are GPUs.

Each is a job of `fab launch`, made, started and supervised as every other is, whose program is the measurement. Nothing
is left of it if it goes well; else its log stays.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from fabfile.backends.base import CannotStart, LogPart, Unreachable
from fabfile.backends.kubernetes import pods, reasons, start, view
from fabfile.backends.kubernetes.backend import KubernetesBackend
from fabfile.backends.submission import Submission
from fabfile.check import launch
from fabfile.check.launch import Heard, ProbeRun
from fabfile.check.measurement import LINKS, Measurement
from fabfile.check.verdict import Verdict
from fabfile.check.waiting_pods import Waiting
from fabfile.launchers.program import SLOT, Program
from infra.inventory import KubeCluster, Node
from node.job import files

Object = dict[str, Any]

NAME = "check"
"""The job is called NAME-NUMBER."""
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


def verdict(cluster: KubeCluster, what: Measurement = LINKS) -> Verdict:
    """Run the job to its end, and judge it. KubeError, Exit."""
    backend = KubernetesBackend(cluster)
    with backend:
        code = start.launch_of(view.of(cluster), _submission(cluster, what, "")).code
        submission = _submission(cluster, what, f"{code}/launch")
        try:
            backend.prepare(submission)
            job = backend.submit(submission).id
        except CannotStart as error:
            return Verdict(what.check, "warn", f"not tried: {error}", "fab jobs")
        found = None
        try:
            found = _judged(backend, job, what, _follow(backend, job, what))
        finally:  # also by Ctrl-C
            _end(backend, job, forget=found is None or found.level == "pass")
    return found


def _submission(cluster: KubeCluster, what: Measurement, program: str) -> Submission:
    """The job, on all machines. `program`: the node program in pods."""
    measures = Program(argv=tuple(what.argv(program)), name=NAME, per=what.per, grace=_GRACE_S)
    return Submission(program=measures, nodes=cluster.workers, time_limit=what.seconds)


def _end(backend: KubernetesBackend, job: str, *, forget: bool) -> None:
    """End the job and see to it that its pods go; `forget`: leave nothing else of it, either."""
    if forget:
        backend.forget(job)
        return
    backend.stop(job, now=True)
    start.remove(backend.api, backend.kube, job)


def _follow(backend: KubernetesBackend, job: str, what: Measurement) -> Followed:
    """Read what the ranks say until they have measured, or one has failed or is silent, or none begins."""
    found, heard = Followed(ProbeRun(), {}), Heard(backend.kube.workers * _per_machine(backend.kube, what))
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
                deadline = time.monotonic() + what.seconds
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


def _per_machine(kube: KubeCluster, what: Measurement) -> int:
    """How many ranks a machine has."""
    return kube.gpus_per_worker if what.per == SLOT else 1


def _judged(backend: KubernetesBackend, job: str, what: Measurement, found: Followed) -> Verdict:
    """The verdict, with the machines that the pods were on as the nodes."""
    there, machine = backend.api.list("Pod", {pods.JOB: job}), backend.kube
    addresses = {reasons.machine(pod): str((pod.get("status") or {}).get("podIP") or "") for pod in there}
    slots = _per_machine(machine, what)
    ranks = [range(number * slots, (number + 1) * slots) for number in range(machine.workers)]
    names = [next((found.machines[rank] for rank in own if rank in found.machines), f"rank {own[0]}") for own in ranks]
    nodes = tuple(
        Node(
            name=name,
            private_ip=addresses.get(name) or name,
            slots=slots,
            nvlink_gb_per_s=machine.nvlink_gb_per_s,
            efa_gbps=machine.efa_gbps,
        )
        for name in names
    )
    judged = what.judge(replace(backend.cluster, nodes=nodes), found.run)
    if judged.level == "pass":
        return judged
    text = judged.found
    for name, address in addresses.items():
        text = text.replace(address, name) if address else text
    if found.said and not found.run.of("result"):
        text = f"{text}; last line of {job}: {found.said}"
    return Verdict(what.check, judged.level, text, f"fab logs {job}")
