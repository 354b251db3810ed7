"""`fab tunnel`: a port of a node on this machine."""

from __future__ import annotations

from typing import Annotated

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import backends
from fabfile.backends.kubernetes.job_pod import JobPod
from fabfile.command_line import ArgumentForm, AtLeast
from fabfile.output import say
from fabfile.remote.fleet import Connections, in_parallel
from fabfile.targets import choose, load_any
from fabfile.tunnel import ports
from fabfile.tunnel.dial import Dialler
from fabfile.tunnel.forward import Forward, until_interrupted
from infra.inventory import Cluster, KubeCluster, Node


@task(
    help={
        "port": f"a port of the node, or what listens there: {', '.join(ports.NAMES)}",
        "node": "name of the node, default: the head; on Kubernetes a job's pod, default: the head pod",
        "local": "the port of this machine; default: the same, or a free one if that is taken",
    }
)
def tunnel(
    _c: Context,
    port: Annotated[str, ArgumentForm("NAME|PORT")],
    node: str = "",
    local: Annotated[int, AtLeast(1)] | None = None,
    stack: str = "",
    inventory: str = "",
) -> None:
    """Forward a port of a node to this machine, until Ctrl-C; a lost connection is made anew."""
    there = ports.number(port)
    if local is not None:
        ports.number(str(local))
    fleet, target = connections(load_any(stack, inventory), node)
    with fleet:
        in_parallel(fleet.connection, [target])  # not reached: that is said now
        listener = ports.listen(local or there, exactly=local is not None)
        forward = Forward(listener, Dialler(fleet, target), lambda: there)
        say(f"http://{forward.address} is port {there} of {target.name}; Ctrl-C ends it")
        until_interrupted(forward)


def connections(cluster: Cluster, node: str) -> tuple[Connections, Node]:
    """Connections to a node by its name (empty: the head), and the node. Exit 2 if there is none."""
    if isinstance(cluster, KubeCluster) and node:
        pod = JobPod(cluster, node)
        return pod, pod.node
    fleet = backends.nodes_of(cluster)
    if not node:
        return fleet, fleet.cluster.head
    if "," in node:
        raise Exit(f"one node is needed; there are: {', '.join(each.name for each in fleet.cluster.nodes)}", code=2)
    (target,) = choose(fleet.cluster, node)
    return fleet, target
