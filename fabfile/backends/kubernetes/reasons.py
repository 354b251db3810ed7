"""Why pods do not run, and why they failed, in one line each, from what Kubernetes says of them. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from fabfile.backends.kubernetes.pods import TRAINER_NODE

Object = dict[str, Any]

_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_PASSING = ("ContainerCreating", "PodInitializing")
_OF_NO_CONSEQUENCE = ("MissingClusterDNS", "DNSConfigForming")
"""Warnings after which a pod starts all the same."""
_LONGEST = 240
STARVED = "killed for want of memory (OOMKilled)"
"""The end of what `failed` says of a pod that had too little memory."""
_PULL = "Back-off pulling image"
_REPEATED = re.compile(
    r"rpc error: code = \w+ desc = |(Failed to pull|failed to pull and unpack) image \"[^\"]*\": "
    r"|failed to resolve (image|reference) \"[^\"]*\": "
)
"""What containerd says before the reason, with the image's name each time."""


def is_alive(pod: Object) -> bool:
    """Whether a pod runs, will run, or is being ended."""
    return phase(pod) not in ("Succeeded", "Failed")


def phase(pod: Object) -> str:
    """Pending, Running, Succeeded, Failed or Unknown."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def machine(pod: Object) -> str:
    """The name of its machine; empty: it has none yet."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def pending(pods: Sequence[Object], events: Sequence[Object], job: str, wanted: int) -> str:
    """Why a job's pods wait, the commonest reason of all; empty if none does, or nothing is said. `wanted`: how many
    there are to be. `events`: the namespace's; those of the job itself say why pods are missing, as with a quota."""
    waiting = [pod for pod in pods if phase(pod) == "Pending"]
    count = len(waiting) + max(0, wanted - len(pods))
    reasons = [reason for pod in waiting if (reason := of_pod(pod, events))]
    if len(pods) < wanted and (missing := _of_events(events, _makers(job))):
        reasons.insert(0, missing)
    if not reasons:
        return ""
    some = f"{count} of {wanted} pods wait: " if count < wanted else ""
    return f"{some}{max(reasons, key=reasons.count)}"


def of_pod(pod: Object, events: Sequence[Object]) -> str:
    """Why one pod waits; empty: nothing is said."""
    status = pod.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waits = (container.get("state") or {}).get("waiting") or {}
        reason, message = str(waits.get("reason") or ""), str(waits.get("message") or "")
        if reason in _IMAGE:
            said = "" if message.startswith(_PULL) else message
            said = _REPEATED.sub("", said or _of_events(events, [("Pod", pod["metadata"]["name"])], "Failed"))
            return line(f"image {container.get('image', '')}: {reason}{': ' if said else ''}{said}")
        if reason and reason not in _PASSING:
            return line(f"{reason}: {message}" if message else reason)
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            said = str(condition.get("message") or condition.get("reason") or "")
            return line(said.partition(". ")[0])  # what follows is of preemption, which nobody has asked for
    return _of_events(events, [("Pod", pod["metadata"]["name"])])


def failed(pods: Iterable[Object]) -> str:
    """Why the first of these pods that failed did so; empty: none has, or nothing is said."""
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        status, where = pod.get("status") or {}, machine(pod)
        name = f"pod {pod['metadata']['name']}{f' on {where}' if where else ''}"
        if phase(pod) != "Failed":
            continue
        if status.get("reason"):  # Evicted, NodeLost ...
            return line(f"{name}: {status['reason']}: {status.get('message') or ''}".rstrip(": "))
        for container in (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())):
            ended = (container.get("state") or {}).get("terminated") or {}
            if ended.get("reason") == "OOMKilled":
                return f"{name}: {STARVED}"
            if code := ended.get("exitCode"):
                said = f": {ended['message']}" if ended.get("message") else ""
                return line(f"{name}: exit code {code}{said}")
    return ""


def _of_events(events: Sequence[Object], objects: Collection[tuple[str, str]], reason: str = "") -> str:
    """The newest warning about one of these objects, each given by its kind and name; with `reason`, of that one."""
    about = [
        event
        for event in events
        if event.get("type") == "Warning"
        and event.get("reason") not in _OF_NO_CONSEQUENCE
        and _about(event) in objects
        and (not reason or event.get("reason") == reason)
    ]
    newest = max(about, key=_when, default=None)
    return line(str(newest.get("message") or newest.get("reason") or "")) if newest else ""


def _makers(job: str) -> list[tuple[str, str]]:
    """Kind and name of all that makes the pods of a job: a PyTorchJob does it itself, a TrainJob by way of others."""
    return [(kind, job) for kind in ("PyTorchJob", "TrainJob", "JobSet")] + [("Job", f"{job}-{TRAINER_NODE}-0")]


def _about(event: Object) -> tuple[str, str]:
    """Kind and name of what an event is about."""
    about = event.get("involvedObject") or {}
    return str(about.get("kind") or ""), str(about.get("name") or "")


def _when(event: Object) -> str:
    """RFC 3339, which sorts as text."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


def line(text: str) -> str:
    """What Kubernetes says as one line, cut off where it is too long for a table."""
    return " ".join(text.split())[:_LONGEST]
