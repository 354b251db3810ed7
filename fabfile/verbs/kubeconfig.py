"""`fab kubeconfig`: what kubectl needs to reach a stack's Kubernetes cluster."""

from __future__ import annotations

import json
import shlex

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile.backends.kubernetes.credentials import kubeconfig_of
from fabfile.output import next_command, say
from fabfile.remote.known_hosts import directory, write
from fabfile.targets import load_any
from infra.inventory import KubeCluster


@task
def kubeconfig(_c: Context, stack: str = "", inventory: str = "") -> None:
    """Write a kubeconfig for the stack's Kubernetes cluster, or say where it is: what kubectl signs in with."""
    cluster = load_any(stack, inventory)
    if not isinstance(cluster, KubeCluster):
        raise Exit(f"{cluster.name}: its nodes are reached over SSH, and it has no Kubernetes: fab ssh NODE", code=2)
    if cluster.kubeconfig:
        say(f"    export KUBECONFIG={shlex.quote(cluster.kubeconfig)}")
        say(next_command("kubectl get nodes"))
        return
    if cluster.authentication != "eks":
        raise Exit(f"{cluster.name}: authentication = {cluster.authentication!r}: your own kubeconfig has it", code=2)
    path = directory(cluster.name) / "kubeconfig"
    write(path, json.dumps(kubeconfig_of(cluster), indent=2) + "\n")
    say(f"written: {path}")
    say(f"    export KUBECONFIG={shlex.quote(str(path))}")
    say(next_command("kubectl get nodes"))
