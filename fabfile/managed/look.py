"""What is seen of a managed job's nodes now: `fab status`' facts, and what Slurm or Kubernetes says of them."""

from __future__ import annotations

from contextlib import closing

from invoke.exceptions import Exit

from fabfile.backends.base import Unreachable
from fabfile.backends.kubernetes import machines
from fabfile.backends.kubernetes.api import Api
from fabfile.backends.kubernetes.errors import KubeError
from fabfile.backends.kubernetes.nodes import OUT_OF_DISK
from fabfile.managed.watch import Seen
from fabfile.remote.ended import WHY, gone_machines
from fabfile.remote.fleet import Fleet
from fabfile.remote.slurm_nodes import unusable
from fabfile.verbs.status import ask_over, describe
from infra.inventory import Cluster, KubeCluster, SshCluster

_TIMEOUT = 5.0
_DOWN = ("down", "fail")


class Look:
    """Keeps its connections open: a new one for each look would cost the nodes more than the look."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._fleet = Fleet(cluster, _TIMEOUT) if isinstance(cluster, SshCluster) else None

    def close(self) -> None:
        """Close the connections to the nodes; for Kubernetes there are none between two looks."""
        if self._fleet:
            self._fleet.close()

    def nodes(self) -> list[Seen]:
        """All nodes of the cluster, in its order; of one whose queue starts machines, those that it always has.
        Unreachable if Kubernetes' API does not answer, and no machine on this host has ended."""
        if self._fleet is None:
            assert isinstance(self.cluster, KubeCluster)
            return _machines(self.cluster)
        cluster, answers = self._fleet.cluster, ask_over(self._fleet)
        found = []
        down = self._down() if cluster.launcher == "slurm" and cluster.queue is None else {}
        for node in cluster.nodes:
            seen = describe(cluster, node, answers[node.name])
            state, reason = seen["state"], seen["reason"]
            if state == "ready" and node.name in down:
                state, reason = "down", f"Slurm: {down[node.name]}"
            found.append(Seen(node.name, state, reason, seen["notice"], seen["disk_error"]))
        return found

    def _down(self) -> dict[str, str]:
        """The nodes that Slurm takes for dead; none while it does not answer, as while slurmctld restarts."""
        assert self._fleet is not None
        return {name: state for name, state in unusable(self._fleet).items() if state.startswith(_DOWN)}


def _machines(cluster: KubeCluster) -> list[Seen]:
    """The machines of a Kubernetes cluster. If its API does not answer, those on this host that have ended: the API's
    own may be one of them."""
    try:
        with closing(Api(cluster, _TIMEOUT)) as api:
            found = machines.found_by(cluster, api)
    except (KubeError, Exit) as error:
        if gone := gone_machines(cluster):
            return [Seen(name, "gone", WHY) for name in gone]
        raise Unreachable(str(getattr(error, "message", None) or error)) from None
    whys = {"gone": WHY, OUT_OF_DISK: "its disk is full: Kubernetes reports DiskPressure"}
    return [Seen(one["name"], one["state"], whys.get(one["state"], "")) for one in found]
