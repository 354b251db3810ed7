"""The few requests that a pod makes of the cluster's API, with its service account: read, watch, force-delete pods.

The service account needs get, list, watch and delete on pods in its namespace, and for a TrainJob patch on pods/status.
Imports only the standard library.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts a pod's token, the API's certificate authority and the namespace."""
JOB_LABEL = "trainyard.dev/job"
_INDEX_LABEL, _TYPE_LABEL = "training.kubeflow.org/replica-index", "training.kubeflow.org/replica-type"
_TRAINJOB_INDEX = "batch.kubernetes.io/job-completion-index"
"""Label of the pods of an Indexed Job of Kubernetes' own, as which Kubeflow Trainer runs a TrainJob."""
_TRACKED = "batch.kubernetes.io/job-tracking"
"""Finalizer of such pods."""
DEAD_MACHINE = "DeletionByTrainyard"
"""Reason of the condition that a pod gets before it is deleted because its machine is dead."""
_OVER = ("Succeeded", "Failed")
_CHANGED = (404, 409, 410)
_SECONDS = 5.0
_WATCH = 60
"""Seconds after which the API is asked to end a watch."""
_LONGEST = 16 << 20


class ApiError(Exception):
    """The API refuses, or does not answer: one line."""


class RefusedError(ApiError):
    """The API refuses."""


class ChangedError(RefusedError):
    """What was asked for is not there any more, or another one is in its place."""


@dataclass(frozen=True)
class PodState:
    """A pod of a job, as the API has it."""

    name: str
    uid: str
    index: int
    """Its number in the job, the first is 0; -1: it has none."""
    machine: str
    """The node of Kubernetes that it is on; empty: on none yet."""
    host_ip: str
    """That machine's address; empty: its kubelet has not begun with it."""
    overdue: bool
    """Whether it should have ended by now, as Kubernetes has told it to, on a machine that it takes for dead, too."""
    tracked: bool = False
    """Whether it stays, when it is deleted, until Kubernetes' Job has counted it as failed or succeeded."""


class Api:
    """The API of the cluster that this pod is in."""

    def __init__(self, account: Path = ACCOUNT, environment: Mapping[str, str] = os.environ) -> None:
        self._account = account
        host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
        self._url = f"https://{f'[{host}]' if ':' in host else host}:{port}"

    def pods(self, job: str) -> list[PodState]:
        """The pods of a job that have not ended, by their numbers. ApiError."""
        query = urllib.parse.urlencode({"labelSelector": f"{JOB_LABEL}={job}"})
        items = self._ask("GET", f"?{query}").get("items") or []
        found = (_pod(item) for item in items if (item.get("status") or {}).get("phase") not in _OVER)
        return sorted(found, key=lambda pod: pod.index)

    def force_delete(self, pod: PodState) -> None:
        """Delete a pod without waiting for its machine to say that it has ended it. One of the same name that has come
        in its place stays. ApiError."""
        if pod.tracked:
            self._ask("PATCH", f"/{pod.name}/status", _as_failed(pod))
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        self._ask("DELETE", f"/{pod.name}", {**options, "preconditions": {"uid": pod.uid}})

    def watch(self, job: str, version: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """What happens to the pods of a job for a minute, each as (ADDED, MODIFIED or DELETED, the pod as it then is).
        From this resourceVersion on; 0: from now on, after all that are there. ChangedError if that is too long ago,
        ApiError."""
        # Without bookmarks: Kubernetes 1.34 over Debian's etcd 3.4 refuses them from 0 on.
        asked = {"watch": "1", "labelSelector": f"{JOB_LABEL}={job}", "timeoutSeconds": str(_WATCH)}
        asked["resourceVersion"] = version
        with self._open("GET", f"?{urllib.parse.urlencode(asked)}", seconds=_WATCH + _SECONDS) as response:
            while line := response.readline(_LONGEST):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise (ChangedError if status["code"] in _CHANGED else RefusedError)(_said(status))
                yield event["type"], event["object"]

    def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        with self._open(method, path, body) as response:
            answer = json.loads(response.read(_LONGEST))
        if not isinstance(answer, dict):
            raise ApiError(f"the API at {self._url} answers with something else than an object")
        return answer

    @contextmanager
    def _open(self, method: str, path: str, body: object = None, seconds: float = _SECONDS) -> Iterator[Any]:
        """The answer to a request; ApiError also for what is wrong while it is read."""
        try:
            # Read each time: Kubernetes replaces the token before it expires.
            token = (self._account / "token").read_text().strip()
            namespace = (self._account / "namespace").read_text().strip()
            context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        except OSError as error:
            raise ApiError(f"this pod has no service account: {error}") from None
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json", "Content-Type": "application/json"}
        url = f"{self._url}/api/v1/namespaces/{urllib.parse.quote(namespace)}/pods{path}"
        if method == "PATCH":
            headers["Content-Type"] = "application/strategic-merge-patch+json"
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        # No proxy of the environment's: the API is in the cluster.
        direct = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            with direct.open(request, timeout=seconds) as response:
                yield response
        except urllib.error.HTTPError as error:
            raise (ChangedError if error.code in _CHANGED else RefusedError)(_refusal(error)) from None
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            why = error.reason if isinstance(error, urllib.error.URLError) else error
            raise ApiError(f"the API at {self._url} does not answer: {why}") from None


def _pod(item: Mapping[str, Any]) -> PodState:
    metadata, status = item["metadata"], item.get("status") or {}
    labels = metadata.get("labels") or {}
    return PodState(
        name=metadata["name"],
        uid=metadata["uid"],
        index=_index(labels),
        machine=(item.get("spec") or {}).get("nodeName") or "",
        host_ip=status.get("hostIP") or "",
        overdue=_is_past(metadata.get("deletionTimestamp") or ""),
        tracked=_TRACKED in (metadata.get("finalizers") or ()),
    )


def _index(labels: Mapping[str, Any]) -> int:
    """A pod's number in its job; -1: it has none. A PyTorchJob counts its first pod and the others apart."""
    number, before = str(labels.get(_TRAINJOB_INDEX, "")), 0
    if not number:
        number, before = str(labels.get(_INDEX_LABEL, "")), int(labels.get(_TYPE_LABEL) != "master")
    return int(number) + before if number.isdecimal() else -1


def _as_failed(pod: PodState) -> dict[str, Any]:
    """The patch after which a Job takes a pod for failed, by a disruption: what Kubernetes itself does to the pods of a
    machine that somebody has taken out of the cluster (markFailedAndDeletePod in
    https://github.com/kubernetes/kubernetes/blob/v1.34.0/pkg/controller/podgc/gc_controller.go)."""
    why = {"reason": DEAD_MACHINE, "message": f"the kubelet of {pod.machine} does not answer"}
    disrupted = {"type": "DisruptionTarget", "status": "True", **why}
    return {"metadata": {"uid": pod.uid}, "status": {"phase": "Failed", "conditions": [disrupted]}}


def _is_past(time: str) -> bool:
    """Whether a time of Kubernetes has passed, which is when a pod's grace ends; False without one."""
    return bool(time) and datetime.fromisoformat(time) < datetime.now(UTC)


def _refusal(error: urllib.error.HTTPError) -> str:
    """The API's own words for a refusal."""
    try:
        said = json.loads(error.read(_LONGEST))["message"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        said = error.reason
    return _said({"code": error.code, "message": said})


def _said(status: Mapping[str, Any]) -> str:
    return f"the API refuses ({status['code']}): {status.get('message') or status.get('reason')}"
