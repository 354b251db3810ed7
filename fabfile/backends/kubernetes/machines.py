"""What `fab status` and `fab wait` do on a Kubernetes cluster."""

from __future__ import annotations

import json as json_text
import time
from contextlib import closing
from typing import Any

from invoke.exceptions import Exit

from fabfile.backends.kubernetes import nodes, pods, reasons
from fabfile.backends.kubernetes.api import Api
from fabfile.backends.kubernetes.errors import KubeError
from fabfile.check import kubernetes as rules
from fabfile.output import next_command, say, table
from fabfile.remote.ended import MEND, WHY, gone_machines
from infra.inventory import KubeCluster, to_object

_LOOK_SECONDS = 5.0  # for the API to answer `fab status`
_POLL = 1.0
_SAY = 10.0  # seconds between two lines of `fab wait`


def status(cluster: KubeCluster, *, json: bool) -> None:
    """Print what the inventory knows of the cluster, and what its API says of it now."""
    try:
        with closing(Api(cluster, _LOOK_SECONDS)) as api:
            found = found_by(cluster, api)
        why = ""
    except (KubeError, Exit) as error:
        found, why = [], str(error.message if isinstance(error, Exit) else error)
    gone = gone_machines(cluster)
    if json:
        now = {"api_error": why or None, "machines": found, "gone": gone}
        say(json_text.dumps({**to_object(cluster), **now}, indent=2))
        return
    say(of_inventory(cluster))
    if why:
        say(f"not known now: {why}")
    if found:
        heading = ["MACHINE", "STATE", "GPUS", "JOBS"]
        say(table([heading, *([one["name"], one["state"], one["gpus"], one["jobs"] or "-"] for one in found)]))
    for name in gone:
        say(f"{name} is gone: {WHY}")
    say(next_command(MEND) + "   (makes what is gone anew)" if gone else next_command("fab check"))


def of_inventory(cluster: KubeCluster) -> str:
    """What the inventory knows of a cluster, as a table."""
    gpus = f"{cluster.gpus_per_worker} GPUs {cluster.gpu_architecture}".rstrip()
    efa = f", {cluster.efa_per_worker} EFA cards" if cluster.efa_per_worker else ""
    rows = [
        ("CLUSTER", cluster.cluster_name or cluster.name),
        ("API", cluster.endpoint or f"as {cluster.kubeconfig or 'your kubeconfig'} says"),
        ("WORKERS", f"{cluster.workers}, each {gpus}{efa}"),
        ("NAMESPACE", cluster.namespace),
        ("IMAGE", cluster.image),
        ("SHARED", f"claim {cluster.shared_claim} at {cluster.shared_dir}" if cluster.shared_claim else "-"),
        ("BUCKET", cluster.data_url or "-"),
        ("PRICE", f"${cluster.hourly_usd:.2f}/h with all workers"),
    ]
    return table(rows)


def found_by(cluster: KubeCluster, api: Api) -> list[dict[str, str]]:
    """The cluster's nodes with their state and the jobs whose pods run there. KubeError."""
    own, gone = api.list("Pod"), gone_machines(cluster)
    found = []
    for node in api.list("Node"):
        name = str(node["metadata"]["name"])
        jobs = {_job(pod) for pod in own if reasons.machine(pod) == name and reasons.is_alive(pod)}
        state = "gone" if name in gone else nodes.state(node)
        gpus = str(nodes.has(node, pods.GPU) or "-")
        found.append({"name": name, "state": state, "gpus": gpus, "jobs": ", ".join(sorted(jobs - {""}))})
    return found


def _job(pod: dict[str, Any]) -> str:
    return str((pod["metadata"].get("labels") or {}).get(pods.JOB) or "")


def wait(cluster: KubeCluster, timeout: float) -> None:
    """Wait until the machines are ready, and the training operator takes a job. Exit 1 once a machine on this host has
    ended, or after `timeout` seconds."""
    began = said = time.monotonic()
    with closing(Api(cluster)) as api:
        while lacking := _lacks(cluster, api):
            now = time.monotonic()
            if now - began > timeout:
                raise Exit(f"not ready after {timeout:g} s: {lacking}\n{next_command('fab check')}", code=1)
            if now - said >= _SAY:
                said = now
                say(f"waiting ({now - began:.0f} s): {lacking}")
            time.sleep(_POLL)
    say(f"{cluster.workers} machines of {cluster.name} ready in {time.monotonic() - began:.1f} s")


def _lacks(cluster: KubeCluster, api: Api) -> str:
    """What is not ready yet; empty: nothing. KubeError or Exit 1 for what no waiting mends."""
    if gone := gone_machines(cluster):
        of = f"{len(gone)} of {cluster.workers} machines are gone"
        raise Exit(f"{of}: {', '.join(gone)}: {WHY}\n{next_command(MEND)}", code=1)
    try:
        for rule in (rules.nodes, rules.claim, rules.operator):
            verdict = rule(cluster, api)
            if verdict.level == "fail":
                return verdict.found
    except KubeError as error:
        if error.code in (401, 403):
            raise
        return str(error)
    return ""
