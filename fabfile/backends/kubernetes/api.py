"""The API of a Kubernetes cluster, by lightkube: apply, get, list and delete objects, and start a program in a pod.

Objects are dictionaries, as their manifests have them. lightkube is imported when it is needed: most stacks are not on
Kubernetes, and their operators do not have it.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from invoke.exceptions import Exit

from fabfile.backends.kubernetes import credentials
from fabfile.backends.kubernetes.errors import KubeError, explained
from fabfile.remote.ended import MEND, WHY, gone_machines
from infra.inventory import KubeCluster

if TYPE_CHECKING:
    import httpx2

MANAGER = "trainyard"
"""Field manager of what is applied: Kubernetes keeps apart who has set what."""
PROTOCOL = "v5.channel.k8s.io"
"""Of the streams of a program in a pod: the first with which its stdin can be closed."""
_START_SECONDS = 30.0  # a busy machine takes its time to start a program
INSTALL = "pip install -c constraints.txt -e '.[kubernetes]'"

Object = dict[str, Any]
"""A Kubernetes object as its manifest has it."""

_KINDS = {
    "Pod": ("core_v1", True),
    "Secret": ("core_v1", True),
    "Event": ("core_v1", True),
    "PersistentVolumeClaim": ("core_v1", True),
    "Node": ("core_v1", False),
    "Deployment": ("apps_v1", True),
}
"""Kind -> lightkube's module of it, and whether it is in a namespace."""
_TRAINER = ("trainer.kubeflow.org", "v1alpha1")
_OWN_KINDS = {
    "PyTorchJob": ("kubeflow.org", "v1", "pytorchjobs"),
    "TrainJob": (*_TRAINER, "trainjobs"),
    "TrainingRuntime": (*_TRAINER, "trainingruntimes"),
}
"""Kind, of a namespace, that somebody has defined in the cluster -> its group, its version, and its name in URLs."""


@cache
def _kind(name: str) -> Any:
    """lightkube's class of a kind."""
    import importlib

    from lightkube.generic_resource import create_namespaced_resource

    if name in _OWN_KINDS:
        group, version, plural = _OWN_KINDS[name]
        return create_namespaced_resource(group, version, name, plural)
    return getattr(importlib.import_module(f"lightkube.resources.{_KINDS[name][0]}"), name)


class Api:
    """The API of one cluster. Not connected until it is asked; every method raises KubeError."""

    def __init__(self, cluster: KubeCluster, timeout: float = 10) -> None:
        """`timeout`: seconds for a connection, and for an answer. Exit 2 without credentials, or without lightkube."""
        try:
            import httpx2
            from lightkube import Client
            from lightkube.config import client_adapter
        except ImportError as error:
            why = f"Kubernetes needs {error.name}, which is not installed: {INSTALL}"
            raise Exit(f"{cluster.name}: {why}", code=2) from None
        found = credentials.of(cluster)
        self.namespace, self.server, self.who = cluster.namespace, found.config.cluster.server, found.who
        self._cluster = cluster
        limits = httpx2.Timeout(timeout)
        self._to_start = httpx2.Timeout(timeout, read=max(timeout, _START_SECONDS))
        try:
            self._client = Client(found.config, cluster.namespace, limits, field_manager=MANAGER)
            params = client_adapter.ConnectionParams(timeout=limits)
            self._http = client_adapter.Client(found.config, params)
        except Exception as error:  # noqa: BLE001 - certificates and keys of a kubeconfig, which may have anything
            raise Exit(f"{found.who}: cannot be used: {' '.join(str(error).split())}", code=2) from None

    def close(self) -> None:
        """Close its connections."""
        self._client.close()
        self._http.close()

    def ended(self) -> str:
        """Which machines on this host have ended, as an addition to why the API does not answer; empty: none."""
        gone = gone_machines(self._cluster)
        return f" ({', '.join(gone)}: {WHY}; {MEND} makes it anew)" if gone else ""

    def apply(self, one: Object, *, dry_run: bool = False) -> Object:
        """Make or change an object by server-side apply; with `dry_run` the API only says whether it could be."""
        from lightkube.types import PatchType

        kind, name = one["kind"], one["metadata"]["name"]
        with explained(self, f"{kind} {name}"):
            found = self._client.patch(
                _kind(kind),
                name,
                one,
                namespace=self._space(kind),
                patch_type=PatchType.APPLY,
                force=True,
                dry_run=dry_run,
            )
        return as_object(found)

    def get(self, kind: str, name: str) -> Object | None:
        """An object; None if there is none of this name."""
        try:
            with explained(self, f"{kind} {name}"):
                return as_object(self._client.get(_kind(kind), name, namespace=self._space(kind)))
        except KubeError as error:
            if error.is_missing:
                return None
            raise

    def log(self, pod: str, lines: int) -> list[str]:
        """The last lines that a pod has printed."""
        with explained(self, f"the log of Pod {pod}"):
            return list(self._client.log(pod, namespace=self.namespace, tail_lines=lines, newlines=False))

    def list(self, kind: str, labels: Mapping[str, str] | None = None) -> list[Object]:
        """All objects of a kind with these labels: of the namespace, or of the cluster for kinds without one."""
        chosen: dict[str, Any] = {"labels": dict(labels)} if labels else {}
        if self._space(kind):
            chosen["namespace"] = self._space(kind)
        with explained(self, kind):
            return [as_object(each) for each in self._client.list(_kind(kind), **chosen)]

    def delete(self, kind: str, name: str, *, at_once: bool = False) -> bool:
        """Delete an object with what it owns; False if there is none of this name. Does not wait. `at_once`: also a pod
        whose machine does not confirm its end."""
        grace = 0 if at_once else None
        try:
            with explained(self, f"{kind} {name}"):
                self._client.delete(_kind(kind), name, namespace=self._space(kind), grace_period=grace)
        except KubeError as error:
            if error.is_missing:
                return False
            raise
        return True

    def exec(self, pod: str, container: str, argv: Sequence[str]) -> Any:
        """Start a program in a pod; returns httpx2's response to the upgrade, whose network stream then has WebSocket
        messages. To be closed."""
        params: dict[str, Any] = {"container": container, "stdin": "true", "stdout": "true", "stderr": "true"}
        params["command"] = list(argv)
        key = base64.b64encode(os.urandom(16)).decode()
        headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": key}
        headers |= {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Protocol": PROTOCOL}
        path = f"api/v1/namespaces/{self.namespace}/pods/{pod}/exec"
        with explained(self, f"a program in Pod {pod}"):
            request = self._http.build_request("GET", path, params=params, headers=headers, timeout=self._to_start)
            response = self._http.send(request, stream=True)
            try:
                self._check_upgrade(response)
            except BaseException:
                response.close()
                raise
        return response

    def _check_upgrade(self, response: httpx2.Response) -> None:
        """KubeError unless WebSocket messages follow on it, or what the API says in their place."""
        if response.status_code != 101:
            response.read()
            response.raise_for_status()
            why = f"answers {response.status_code} to the start of a program"
            raise KubeError(f"{self.server}: {why}", response.status_code)
        spoken = response.headers.get("sec-websocket-protocol")
        if spoken != PROTOCOL:
            why = f"speaks {spoken or 'no protocol'} to programs in pods, not {PROTOCOL}: Kubernetes 1.30 or newer does"
            raise KubeError(f"{self.server}: {why}")

    def _space(self, kind: str) -> str | None:
        return self.namespace if kind in _OWN_KINDS or _KINDS[kind][1] else None


def as_object(found: Any) -> Object:
    """What lightkube returns as a manifest has it."""
    made: Object = found.to_dict()
    return made
