"""An API server on loopback as a pod's service account reaches it: TLS with an authority of its own, pods, refusals.

with served(tmp_path) as api:
    api.pod("demo-1-worker-0", "machine-1", "127.0.0.1")
    Api(api.account, api.environment).pods("demo-1")
"""

from __future__ import annotations

import http.server
import json
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from http_server import listening
from kube_api import certificate

JOB = "demo-1"


@dataclass
class PodApi:
    """The server, as a pod sees it and as a test changes it."""

    account: Path
    environment: dict[str, str] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Pods that were marked as failed, with the reason."""
    history: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """What a watch tells, in this order: (kind of event, the pod); its place in it, from 1, is the resourceVersion."""
    asked: list[str] = field(default_factory=list)
    """The resourceVersions from which watches have begun."""
    token: str = "first"
    made: int = 0

    def pod(self, name: str, machine: str, host_ip: str = "", *, to_end_at: str = "", phase: str = "Pending") -> None:
        """Put a pod there, in place of one of its name; `name` as the training operator makes it."""
        self.made += 1
        _, kind, index = name.rsplit("-", 2)
        labels = {"trainyard.dev/job": JOB, "training.kubeflow.org/replica-type": kind}
        self.pods[name] = {
            "metadata": {
                "name": name,
                "uid": f"uid-{self.made}",
                "labels": {**labels, "training.kubeflow.org/replica-index": index},
                **({"deletionTimestamp": to_end_at} if to_end_at else {}),
            },
            "spec": {"nodeName": machine} if machine else {},
            "status": {"phase": phase, **({"hostIP": host_ip} if host_ip else {})},
        }

    def happens(self, kind: str, name: str, ip: str, **status: Any) -> None:
        """Let something happen to a pod; `status` as in its object, `to_end_at` when it is to end."""
        metadata = {"name": name, "resourceVersion": str(len(self.history) + 1)}
        if to_end_at := status.pop("to_end_at", ""):
            metadata["deletionTimestamp"] = to_end_at
        self.history.append((kind, {"metadata": metadata, "status": {"podIP": ip, **status}}))

    def renew(self, token: str) -> None:
        """Replace the pods' token, as the kubelet does; the server takes only this one from now on."""
        self.token = token
        (self.account / "token").write_text(f"{token}\n")


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers for the server `api`, which a class derived from this one has."""

    api: PodApi

    def do_GET(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        if self._refused(parts.path):
            return
        query = {key: values[0] for key, values in urllib.parse.parse_qs(parts.query).items()}
        assert query["labelSelector"] == f"trainyard.dev/job={JOB}"
        if "watch" in query:
            self._tell(query.get("resourceVersion", ""))
            return
        self._answer(200, {"kind": "PodList", "items": list(self.api.pods.values())})

    def do_DELETE(self) -> None:
        path, _, name = self.path.rpartition("/")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refused(path):
            return
        if pod := self._of(name, body["preconditions"]["uid"]):
            assert body["gracePeriodSeconds"] == 0, "else it stays for ever"
            self.api.deleted.append(f"{name} {pod['metadata']['uid']}")
            self._answer(200, self.api.pods.pop(name))

    def do_PATCH(self) -> None:
        """Of a pod's status: a strategic merge, as far as it is needed."""
        path, name, part = self.path.rsplit("/", 2)
        patch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert part == "status" and self.headers["Content-Type"] == "application/strategic-merge-patch+json"
        if self._refused(path):
            return
        if pod := self._of(name, patch["metadata"]["uid"]):
            pod["status"] |= patch["status"]
            self.api.failed.append(f"{name} {patch['status']['conditions'][0]['reason']}")
            self._answer(200, pod)

    def _of(self, name: str, uid: str) -> dict[str, Any] | None:
        """The pod of this name, if it has this uid; else None, and the answer says why."""
        pod = self.api.pods.get(name)
        if pod is None:
            self._status(404, f'pods "{name}" not found')
        elif uid != pod["metadata"]["uid"]:
            self._status(409, "the UID in the precondition does not match")
        else:
            return pod
        return None

    def _tell(self, version: str) -> None:
        """What has happened since that version; the watch then ends."""
        self.api.asked.append(version)
        self.send_response(200)
        self.end_headers()
        if not version or "allowWatchBookmarks" in self.path:  # as Kubernetes 1.34 answers over etcd 3.4
            status = {"kind": "Status", "code": 500, "message": "the required storage feature is disabled"}
            self.wfile.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            return
        if version == "old":
            gone = {"kind": "Status", "code": 410, "reason": "Expired"}
            self.wfile.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return
        for kind, pod in self.api.history[int(version) :]:
            self.wfile.write(json.dumps({"type": kind, "object": pod}).encode() + b"\n")
        time.sleep(0.05)

    def _refused(self, path: str) -> bool:
        if self.headers["Authorization"] != f"Bearer {self.api.token}":
            self._status(401, "Unauthorized")
        elif path != "/api/v1/namespaces/training/pods":
            self._status(403, 'pods is forbidden: User "jobs" cannot list resource "pods"')
        else:
            return False
        return True

    def _status(self, code: int, message: str) -> None:
        self._answer(code, {"kind": "Status", "status": "Failure", "message": message, "code": code})

    def _answer(self, code: int, answer: object) -> None:
        text = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nothing: pytest shows what a test needs."""


@contextmanager
def served(folder: Path) -> Iterator[PodApi]:
    """The server, and in `folder` what a pod's service account has of it."""
    account = folder / "account"
    account.mkdir()
    api = PodApi(account)
    pem, key = certificate()
    (account / "ca.crt").write_bytes(pem)
    (account / "namespace").write_text("training")
    api.renew("first")
    with listening(type("Handler", (Handler,), {"api": api}), identity=pem + key) as url:
        port = str(urllib.parse.urlsplit(url).port)
        api.environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}
        yield api
