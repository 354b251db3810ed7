"""A pod of a job as a node that programs are run on, for what a job's own program listens to."""

from __future__ import annotations

from dataclasses import replace

from invoke.exceptions import Exit

from fabfile.backends.kubernetes import pods, reasons, view
from fabfile.backends.kubernetes.api import Api
from fabfile.backends.kubernetes.head_pod import HeadPod
from fabfile.remote.fleet import Connections
from infra.inventory import KubeCluster, Node


class JobPod(Connections):
    """One running pod of a job. Exit 2, with those that run, if there is none of this name."""

    def __init__(self, cluster: KubeCluster, name: str) -> None:
        self.cluster = view.of(cluster)
        self.node = replace(self.cluster.head, name=name)
        self._api = Api(cluster)
        found = [pod for pod in self._api.list("Pod", {pods.STACK: cluster.name}) if reasons.phase(pod) == "Running"]
        there = {str(pod["metadata"]["name"]): pod for pod in found if pods.JOB in pod["metadata"]["labels"]}
        if name not in there:
            self._api.close()
            names = ", ".join(sorted(there)) or "none"
            raise Exit(f"{cluster.name}: no pod {name!r} of a job runs; there are: {names}", code=2)
        self._pod = HeadPod(self._api, self.node, name, str(there[name]["spec"]["containers"][0]["name"]))

    def connection(self, node: Node, timeout: float | None = None) -> HeadPod:
        """The pod; a program that is started in it makes its own connection."""
        return self._pod

    def close(self) -> None:
        """End what was started in it."""
        self._pod.close()
        self._api.close()
