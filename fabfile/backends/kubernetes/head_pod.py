"""The head pod as a node that commands run on: made when it is first needed, and made again by Kubernetes if lost."""

from __future__ import annotations

import threading
import time
import weakref
from dataclasses import replace
from typing import Any

from fabfile.backends.kubernetes import pods, reasons
from fabfile.backends.kubernetes.api import Api
from fabfile.backends.kubernetes.channel import ExecChannel
from fabfile.backends.kubernetes.errors import KubeError
from fabfile.container import repository
from fabfile.output import say
from fabfile.remote.fleet import Connections
from infra.inventory import KubeCluster, Node, SshCluster

START = 300.0
"""Seconds for the head pod to start: its image of 10 GB or more may have to be pulled."""
NO_IMAGE = 60.0
"""The same if the image cannot be pulled; a registry may be away for a moment."""
_SAY = 10.0  # seconds between two lines that say why it does not run yet
_POLL = 0.5
_IN_URL = 8000  # longest command, in bytes, that goes into the request's URL; a longer one goes by stdin
_HOME = 'mkdir -p "$HOME" && cd || exit'


class HeadPod:
    """A pod that runs now, the head's or a job's, as a connection to a node."""

    def __init__(self, api: Api, node: Node, name: str, container: str = pods.CONTAINER) -> None:
        self.node, self.name, self._container = node, name, container
        self.is_lost = False
        self._api = api
        self._channels: weakref.WeakSet[ExecChannel] = weakref.WeakSet()

    def create_session(self) -> ExecChannel:
        """A channel for one command. It runs in the home directory, as with sshd."""
        channel = ExecChannel(self._start, self._lose)
        self._channels.add(channel)
        return channel

    def close(self) -> None:
        """Close its channels: the commands lose their stdin, and their guards end them."""
        for channel in list(self._channels):
            channel.close()

    def _lose(self) -> None:
        """Have the next command look for the pod anew: its machine may have died."""
        self.is_lost = True

    def _start(self, command: str) -> tuple[Any, bytes]:
        """Start a shell command; returns the upgraded response, and what is to be sent to its stdin first."""
        text = command.encode()
        script, first = f"{_HOME}; {command}", b""
        if len(text) > _IN_URL:
            script, first = f'{_HOME}; c=$(head -c {len(text)}) && eval "$c"', text
        try:
            return self._api.exec(self.name, self._container, ["/bin/bash", "-c", script]), first
        except KubeError as error:
            self.is_lost = error.code != 0  # the API answers, and the pod may be another one by now
            raise


class HeadPods(Connections):
    """The one node of a cluster's view: its head pod."""

    def __init__(self, api: Api, cluster: KubeCluster, view: SshCluster) -> None:
        self.cluster = view
        self._api, self._kube = api, cluster
        self._lock = threading.Lock()
        self._pod: HeadPod | None = None
        self._closed = False

    def connection(self, node: Node, timeout: float | None = None) -> HeadPod:
        """The head pod; it is made, and waited for, if it is not there. KubeError."""
        with self._lock:
            if self._pod is None or self._pod.is_lost:
                self._pod = HeadPod(self._api, node, self._running())
            if self._closed:  # meanwhile, by Ctrl-C: nothing may be started any more
                raise KubeError(f"{node.name}: closed")
            return self._pod

    def close(self) -> None:
        """End what runs there. The pod stays."""
        self._closed = True
        if self._pod is not None:
            self._pod.close()

    def _running(self) -> str:
        """The name of the head's pod, once it runs."""
        there = self._api.get("Deployment", pods.HEAD)
        wanted = pods.head(replace(self._kube, image=self._image(there)))
        digest = wanted["metadata"]["labels"][pods.SPEC]
        if there is None or (there["metadata"].get("labels") or {}).get(pods.SPEC) != digest:
            self._api.apply(wanted)
        began = said = time.monotonic()
        while True:
            found = self._api.list("Pod", {"app": pods.HEAD, pods.SPEC: digest})
            for pod in filter(_runs, found):
                return str(pod["metadata"]["name"])
            now = time.monotonic()
            if now - said > _SAY or now - began > START:
                said, why = now, self._why(found)
                if now - began > (NO_IMAGE if why.startswith("image ") else START):
                    raise KubeError(f"{pods.HEAD}: does not run after {now - began:.0f} s: {why}")
                say(f"{pods.HEAD}: waiting for the pod that the jobs' files are read in ({now - began:.0f} s): {why}")
            if self._closed:
                raise KubeError(f"{pods.HEAD}: closed")
            time.sleep(_POLL)

    def _image(self, there: dict[str, Any] | None) -> str:
        """The image that the pod has, if the cluster names only a repository: one that somebody has pushed since is for
        new jobs, and shall not end what runs in the pod. Exit 2 if it is to be made and the repository is empty."""
        if not repository.is_named(self._kube.image) and there is not None:
            (container,) = there["spec"]["template"]["spec"]["containers"]
            if container["image"].startswith(f"{self._kube.image}@"):
                return str(container["image"])
        return repository.job_image(self._kube)

    def _why(self, found: list[dict[str, Any]]) -> str:
        events = self._api.list("Event")
        return next(filter(None, (reasons.of_pod(pod, events) for pod in found)), "") or "it has not started yet"


def _runs(pod: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()  # containerStatuses never change on a dead machine
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    return reasons.phase(pod) == "Running" and ready and not pod["metadata"].get("deletionTimestamp")
