"""A Kubernetes API on loopback with objects in memory, whose pods' programs are ordinary processes of this machine.

with served(tmp_path) as kube:
    kube.cluster                  # its inventory
    kube.put(pod("demo-1-master-0", job="demo-1"))
    kube.objects[("Pod", "demo-1-master-0")]

A program in a pod speaks v5.channel.k8s.io, as a kubelet does: its exit code comes on the error channel.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
import shutil
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from http_server import listening
from kube_api import certificate
from kube_streams import Object, Streams, run

from fabfile.backends.kubernetes import pods
from infra.inventory import KubeCluster

KINDS = {
    **{"pods": "Pod", "secrets": "Secret", "events": "Event", "nodes": "Node", "deployments": "Deployment"},
    **{"persistentvolumeclaims": "PersistentVolumeClaim", "pytorchjobs": "PyTorchJob"},
    **{"trainjobs": "TrainJob", "trainingruntimes": "TrainingRuntime"},
}
_PATH = re.compile(
    r"/(?:api|apis/[^/]+)/v1(?:alpha1)?(?:/namespaces/(?P<space>[^/]+))?/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?"
)
_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TOKEN = "a-token"


@dataclass
class Kube:
    """The server, as a client sees it and as a test changes it."""

    home: Path
    """HOME of the programs in pods, below the shared folder."""
    url: str = ""
    cluster: KubeCluster = field(init=False)
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    applied: list[Object] = field(default_factory=list)
    deleted: list[tuple[str, str]] = field(default_factory=list)
    at_once: list[str] = field(default_factory=list)
    """Names of what was deleted without waiting for its machine."""
    refusals: list[tuple[Callable[[str, str], bool], int, Object]] = field(default_factory=list)
    """Asked with (method, path); the first that is true is answered with this status and Status, for ever."""
    unknown: set[str] = field(default_factory=set)
    """Kinds that are not installed."""
    protocol: str = ""
    """The protocol of programs in pods that the server speaks, whatever it is asked for."""
    execs: list[list[str]] = field(default_factory=list)
    play: Callable[[Streams], None] | None = None
    """What the next programs do instead of running; None: they run."""
    logs: dict[str, str] = field(default_factory=dict)
    """By a pod's name: what it has printed."""
    on_apply: Callable[[Kube, Object], None] = lambda kube, one: None
    """As controllers do, which act on objects."""

    def clear(self) -> None:
        """Be as new, but for the programs on the shared volume, which take a while to put there."""
        for each in (
            self.objects,
            self.applied,
            self.deleted,
            self.at_once,
            self.refusals,
            self.unknown,
            self.execs,
            self.logs,
        ):
            each.clear()
        self.protocol, self.play, self.on_apply = "", None, deployed
        shutil.rmtree(Path(self.cluster.shared_dir) / "runs", ignore_errors=True)

    def put(self, one: Object) -> None:
        """Have an object there, as somebody else has made it."""
        self.objects[(one["kind"], one["metadata"]["name"])] = one

    def refuse(self, part: str, code: int, message: str, *, method: str = "", **more: Any) -> None:
        """Refuse requests whose path has this part."""
        status = {"kind": "Status", "status": "Failure", "code": code, "message": message, **more}
        self.refusals.append((lambda verb, path: part in path and method in ("", verb), code, status))


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers for the server `kube`, which a class derived from this one has."""

    kube: Kube
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query)
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self._answer(401, {"kind": "Status", "status": "Failure", "code": 401, "message": "Unauthorized"})
        for is_meant, code, status in self.kube.refusals:
            if is_meant(self.command, url.path):
                return self._answer(code, status)
        if url.path.endswith("/exec"):
            return self._exec(query)
        if url.path.endswith("/log"):
            return self._log(url.path.split("/")[-2], int(query["tailLines"][0]))
        found = _PATH.fullmatch(url.path)
        if found is None or KINDS.get(found["plural"], "") in self.kube.unknown:
            return self._answer(404, _missing("", "the server could not find the requested resource"))
        return self._answer(*_done(self.kube, self.command, KINDS[found["plural"]], found["name"], query, body))

    do_GET = do_PATCH = do_DELETE = _serve

    def _exec(self, query: dict[str, list[str]]) -> None:
        self.kube.execs.append(query["command"])
        key = hashlib.sha1((self.headers["Sec-WebSocket-Key"] + _MAGIC).encode()).digest()
        self.send_response(101)
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade")):
            self.send_header(name, value)
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(key).decode())
        self.send_header("Sec-WebSocket-Protocol", self.kube.protocol or self.headers["Sec-WebSocket-Protocol"])
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        streams = Streams(self.connection)
        with suppress(OSError):
            if self.kube.play is None:
                run(query["command"], self.kube.home, streams)
            else:
                self.kube.play(streams)

    def _log(self, name: str, lines: int) -> None:
        last = self.kube.logs.get(name, "").splitlines(keepends=True)[-lines:]
        self._send(200, "text/plain", "".join(last).encode())

    def _answer(self, code: int, answer: Object) -> None:
        self._send(code, "application/json", json.dumps(answer).encode())

    def _send(self, code: int, form: str, text: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", form)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nothing: pytest shows what a test needs."""


def _missing(name: str, message: str) -> Object:
    details = {"name": name} if name else {}
    return {
        "kind": "Status",
        "status": "Failure",
        "code": 404,
        "reason": "NotFound",
        "message": message,
        "details": details,
    }


def _done(
    kube: Kube, method: str, kind: str, name: str | None, query: dict[str, list[str]], body: bytes
) -> tuple[int, Object]:
    """Do what a request asks for; returns the answer."""
    if name is None:
        wanted = dict(each.split("=", 1) for each in ",".join(query.get("labelSelector", [])).split(",") if each)
        of_kind = [one for (each, _), one in kube.objects.items() if each == kind]
        chosen = [one for one in of_kind if wanted.items() <= (one["metadata"].get("labels") or {}).items()]
        return 200, {"kind": f"{kind}List", "apiVersion": "v1", "metadata": {}, "items": chosen}
    if method == "PATCH":
        assert query["fieldManager"] == ["trainyard"] and query["force"] == ["true"], "else it is no server-side apply"
        one = json.loads(body)
        one["metadata"] = {"uid": f"uid-of-{name}", **one["metadata"]}
        kube.applied.append(one)
        if "dryRun" not in query:
            kube.put(one)
            kube.on_apply(kube, one)
        return 200, one
    found = kube.objects.get((kind, name))
    if found is None:
        return 404, _missing(name, f'{kind.lower()}s "{name}" not found')
    if method == "DELETE":
        kube.deleted.append((kind, name))
        if query.get("gracePeriodSeconds") == ["0"]:
            kube.at_once.append(name)
        del kube.objects[(kind, name)]
        if kind in ("PyTorchJob", "TrainJob"):  # as the garbage collector does
            for key, one in list(kube.objects.items()):
                if (
                    one["kind"] == "Pod"
                    and "finalizers" not in one["metadata"]
                    and (one["metadata"].get("labels") or {}).get(pods.JOB) == name
                ):
                    del kube.objects[key]
    return 200, found


def deployed(kube: Kube, one: Object) -> None:
    """What the controller of Deployments does: a pod that runs."""
    if one["kind"] == "Deployment":
        labels = one["spec"]["template"]["metadata"]["labels"]
        made = pod(f"{one['metadata']['name']}-x", phase="Running", machine="machine1")
        containers = one["spec"]["template"]["spec"]["containers"]
        made["metadata"]["labels"], made["spec"]["containers"] = labels, containers
        kube.put(made)


def pod(name: str, job: str = "", *, phase: str = "Pending", machine: str = "", **status: Any) -> Object:
    """A pod of a job, as the API has it."""
    labels = {pods.JOB: job, pods.STACK: "kind"} if job else {}
    states = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "train", "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i:1"}], **({"nodeName": machine} if machine else {})},
        "status": {"phase": phase, **(states if phase == "Running" else {}), **status},
    }


@contextmanager
def served(folder: Path) -> Iterator[Kube]:
    """The server, with a kubeconfig in `folder`, which is also what the pods share."""
    kube = Kube(folder / "shared/.trainyard/home", on_apply=deployed)
    pem, key = certificate()
    with listening(type("Handler", (Handler,), {"kube": kube}), identity=pem + key) as kube.url:
        kube.cluster = _inventory(folder, kube.url, pem)
        yield kube


def _inventory(folder: Path, url: str, pem: bytes) -> KubeCluster:
    server = {"server": url, "certificate-authority-data": base64.b64encode(pem).decode()}
    config = {
        "current-context": "yard",
        "clusters": [{"name": "yard", "cluster": server}],
        "users": [{"name": "me", "user": {"token": TOKEN}}],
        "contexts": [{"name": "yard", "context": {"cluster": "yard", "user": "me"}}],
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    (folder / "shared").mkdir(exist_ok=True)
    return KubeCluster(
        name="kind",
        kubeconfig=str(folder / "kubeconfig"),
        namespace="train",
        image="i:1",
        workers=3,
        gpus_per_worker=0,
        shared_dir=str(folder / "shared"),
        shared_claim="shared",
    )
