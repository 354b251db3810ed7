"""The pre-flight of a Kubernetes cluster: what a job needs there, each after what it builds on."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

from invoke.exceptions import Exit

from fabfile.backends.kubernetes import pods, pytorchjob, reasons, trainjob, view
from fabfile.backends.kubernetes.api import Api
from fabfile.backends.kubernetes.errors import KubeError
from fabfile.backends.kubernetes.head_pod import HeadPods
from fabfile.backends.kubernetes.nodes import has, is_ready, state
from fabfile.backends.kubernetes.pod_template import PodJob
from fabfile.check import all_reduce_in_pods as all_reduce
from fabfile.check.measurement import GPUS, LINKS
from fabfile.check.verdict import Problem, Verdict, judge
from fabfile.container.repository import job_image
from fabfile.launchers import SYSTEM_PYTHON, VENV
from fabfile.remote.ended import MEND, WHY, gone_machines
from infra.inventory import KubeCluster

Object = dict[str, Any]

DNS = "dns"
_TORCH_SECONDS = 120.0
_STARTS = f"{SYSTEM_PYTHON} -I -c 1 && {VENV}/python -c 'import torch; print(torch.__version__)'"
_API_NAME = "kubernetes.default.svc"
"""Of the API's own service, in every cluster."""
_LOOK_UP = f"{SYSTEM_PYTHON} -I -c 'import socket, sys; print(socket.gethostbyname(sys.argv[1]))'"
_DNS_SECONDS = 30.0
_DESCRIBE = "kubectl describe nodes"


def of_cluster(cluster: KubeCluster) -> Generator[Verdict, None, None]:
    """Yield each check's verdict as soon as it is known."""
    with closing(Api(cluster)) as api:
        yield from verdicts_of(cluster, api)


def verdicts_of(cluster: KubeCluster, api: Api) -> Generator[Verdict, None, None]:
    """The same; none after the API's own if that fails. No job is tried unless all else that it needs is there."""
    first = reached(cluster, api)
    yield first
    if first.level == "fail":
        return
    failed: list[Verdict] = []
    for name, found in CHECKS.items():
        one = _verdict(name, functools.partial(found, cluster, api))
        failed += [one] if one.level == "fail" else []
        yield one
    if failed:
        names = ", ".join(one.check for one in failed)
        why = f"not tried: a job needs what has failed ({names})"
        yield Verdict(LINKS.check, "warn", why, failed[0].mend)
        return
    yield _verdict(DNS, functools.partial(dns, cluster, api))
    for what in (LINKS, *([GPUS] if cluster.gpus_per_worker else [])):
        measured = _verdict(what.check, functools.partial(all_reduce.verdict, cluster, what))
        yield measured
        if measured.level == "fail":
            return


def _verdict(name: str, found: Callable[[], Verdict]) -> Verdict:
    """What a check finds; if the API or the head pod does not do what it is asked, that."""
    try:
        return found()
    except KubeError as error:
        return Verdict(name, "fail", str(error), "fab kubeconfig" if error.code in (401, 403) else "fab status")
    except Exit as error:
        return Verdict(name, "fail", str(error.message), "fab status")


def reached(cluster: KubeCluster, api: Api) -> Verdict:
    """Whether the API answers, and lets this operator look at the jobs' namespace, and no machine has ended."""
    if gone := gone_machines(cluster):
        return Verdict("api", "fail", f"{', '.join(gone)}: {WHY}", MEND)
    try:
        api.list("Pod", {pods.STACK: cluster.name})
    except KubeError as error:
        return Verdict("api", "fail", str(error), "kubectl cluster-info")
    return Verdict("api", "pass", f"{api.server} answers {api.who}")


def nodes(cluster: KubeCluster, api: Api) -> Verdict:
    """Whether as many machines are ready as the inventory says, with their GPUs and EFA cards as resources."""
    try:
        found = api.list("Node")
    except KubeError as error:
        if error.code != 403:
            raise
        return judge("nodes", [Problem("warn", f"may not be seen: {error}", "kubectl auth can-i list nodes")], "")
    ready = [node for node in found if is_ready(node)]
    others = {node["metadata"]["name"]: state(node) for node in found if node not in ready}
    problems = [Problem("warn", f"{name} is {how}", _DESCRIBE) for name, how in others.items()]
    wanted = {pods.GPU: cluster.gpus_per_worker, pods.EFA: cluster.efa_per_worker}
    wanted = {resource: count for resource, count in wanted.items() if count}
    fit = [node for node in ready if all(has(node, resource) >= count for resource, count in wanted.items())]
    of_each = "".join(f", {count} {resource} each" for resource, count in wanted.items())
    if len(fit) < cluster.workers:
        what = f"{len(fit)} of {cluster.workers} machines are ready{of_each and ' with' + of_each[1:]}"
        why = (
            "its device plugin does not run, or the machines are not there" if wanted and len(fit) < len(ready) else ""
        )
        problems.insert(0, Problem("fail", f"{what}{': ' if why else ''}{why}", _DESCRIBE))
    return judge("nodes", problems, f"{len(fit)} ready{of_each}")


def claim(cluster: KubeCluster, api: Api) -> Verdict:
    """Whether the volume that all pods share is bound."""
    name = cluster.shared_claim
    found = api.get("PersistentVolumeClaim", name)
    phase = ((found or {}).get("status") or {}).get("phase")
    if found is None or phase != "Bound":
        what = "is not there" if found is None else f"is {phase}"
        mend = f"kubectl -n {cluster.namespace} describe pvc {name}"
        return Verdict("volume", "fail", f"the claim {name} {what}", mend)
    return Verdict("volume", "pass", f"the claim {name} is bound, at {cluster.shared_dir} in pods")


def operator(cluster: KubeCluster, api: Api) -> Verdict:
    """Whether the training operator takes a job: a PyTorchJob of all machines, applied as a dry run."""
    job = PodJob(id="trainyard-check", nodes=cluster.workers, run_dir=cluster.shared_dir, program="launch")
    if cluster.job_kind == "TrainJob":
        return _trainer(cluster, api, job)
    try:
        api.apply(pytorchjob.rendered(cluster, job), dry_run=True)
    except KubeError as error:
        return Verdict(
            "operator", "fail", str(error), "kubectl get pods -A -l control-plane=kubeflow-training-operator"
        )
    return Verdict("operator", "pass", f"the training operator would take a PyTorchJob of {cluster.workers} pods")


def _trainer(cluster: KubeCluster, api: Api, job: PodJob) -> Verdict:
    """Whether Kubeflow Trainer takes the job's TrainingRuntime, applied as a dry run, and TrainJob is defined: one
    whose runtime is not there Trainer refuses."""
    try:
        api.apply(trainjob.rendered(cluster, job)[0], dry_run=True)
        api.list("TrainJob")
    except KubeError as error:
        return Verdict("operator", "fail", str(error), "kubectl get crds trainjobs.trainer.kubeflow.org")
    return Verdict("operator", "pass", f"Kubeflow Trainer would take a TrainingRuntime of {cluster.workers} pods")


def image(cluster: KubeCluster, api: Api) -> Verdict:
    """Whether the image is pulled and has the software, by the head pod, and whether jobs take this one."""
    try:
        newest = job_image(cluster)
    except Exit as error:
        return Verdict("image", "fail", str(error.message), "fab image push")
    began = time.monotonic()
    with HeadPods(api, cluster, view.of(cluster)) as head:
        node = head.cluster.head
        pod = head.connection(node)
        took = time.monotonic() - began
        result = head.run(_STARTS, nodes=[node], timeout=_TORCH_SECONDS)[node.name]
    there = api.get("Pod", pod.name) or {"spec": {}}
    has = next((str(one["image"]) for one in there["spec"].get("containers", ()) if "image" in one), newest)
    where = f"pod {pod.name} on {reasons.machine(there) or 'no machine'}"
    if not result.ok:
        mend = f"kubectl -n {cluster.namespace} exec {pod.name} -- ls {VENV}"
        return Verdict("image", "fail", f"{has} in {where}: {result.why}", mend)
    found = f"{has}: {where} in {took:.1f} s, torch {result.stdout.strip()}"
    if newest != has:
        mend = f"kubectl -n {cluster.namespace} delete deployment {pods.HEAD}; fab check"
        return Verdict("image", "warn", f"{found}; but jobs take {newest}, pushed since, which is not tried yet", mend)
    return Verdict("image", "pass", found)


def dns(cluster: KubeCluster, api: Api) -> Verdict:
    """Whether a name of the cluster leads to its service, as the head pod looks it up."""
    with HeadPods(api, cluster, view.of(cluster)) as head:
        node = head.cluster.head
        pod = head.connection(node)
        began = time.monotonic()
        result = head.run(f"{_LOOK_UP} {_API_NAME}", nodes=[node], timeout=_DNS_SECONDS)[node.name]
    if not result.ok:
        mend = f"kubectl -n {cluster.namespace} exec {pod.name} -- cat /etc/resolv.conf"
        return Verdict(DNS, "fail", f"pod {pod.name} cannot look up {_API_NAME}: {result.why}", mend)
    took = time.monotonic() - began
    return Verdict(DNS, "pass", f"{_API_NAME} is {result.stdout.strip()}, looked up in a pod in {took:.1f} s")


CHECKS: dict[str, Callable[[KubeCluster, Api], Verdict]] = {
    **{"nodes": nodes, "volume": claim, "operator": operator, "image": image},
}
