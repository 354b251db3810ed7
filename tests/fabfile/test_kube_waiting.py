"""Jobs on Kubernetes that wait for machines side by side: no two of them may hold machines that the other one lacks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_cluster import Kube, pod
from kube_job import conditioned, started, state, unschedulable

from fabfile.backends.kubernetes import waiting
from fabfile.backends.kubernetes.backend import KubernetesBackend

BUSY = "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules. preemption: 0/3 nodes are ..."


def ready(name: str) -> dict[str, object]:
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}, "status": status}


def stuck(machines: int, wanted: Mapping[str, int], beside: Mapping[str, Sequence[str]]) -> Iterator[dict[str, int]]:
    """All ways in which jobs hold all of the machines, and none of them all of its own."""
    jobs = list(wanted)
    for held in itertools.product(*(range(wanted[job]) for job in jobs)):
        holds = {job: count for job, count in zip(jobs, held, strict=True) if count}
        apart = any(other in holds for job in holds for other in beside[job])
        if sum(held) == machines and not apart:
            yield holds


@given(st.integers(1, 5), st.lists(st.integers(1, 5), max_size=5))
def test_no_jobs_block_each_other(machines: int, sizes: list[int]) -> None:
    wanted: dict[str, int] = {}
    beside: dict[str, tuple[str, ...]] = {}
    for number, size in enumerate(min(size, machines) for size in sizes):
        beside[str(number)] = waiting.never_beside(size, machines, list(wanted.items()))
        wanted[str(number)] = size
    assert next(stuck(machines, wanted, beside), None) is None


@pytest.mark.parametrize(
    ("wanted", "machines", "others", "expected"),
    [
        (2, 4, [("a", 2)], ()),  # both have room
        (2, 3, [("a", 3)], ("a",)),
        (2, 4, [("a", 2), ("b", 2), ("c", 2)], ("c",)),  # beside two of them it may be
        (1, 3, [("a", 3), ("b", 3)], ()),  # one pod holds no part
        (3, 3, [("a", 1), ("b", 2), ("c", 1)], ("b",)),
        (3, 3, [], ()),
    ],
)
def test_only_those_beside_which_it_could_be_stuck(
    wanted: int, machines: int, others: list[tuple[str, int]], expected: tuple[str, ...]
) -> None:
    assert waiting.never_beside(wanted, machines, others) == expected


def rules(kube: Kube, job: str, kind: str = "Worker") -> list[dict[str, object]]:
    template = kube.objects[("PyTorchJob", job)]["spec"]["pytorchReplicaSpecs"][kind]["template"]
    affinity: dict[str, list[dict[str, object]]] = template["spec"]["affinity"]["podAntiAffinity"]
    return affinity["requiredDuringSchedulingIgnoredDuringExecution"]


@pytest.mark.acceptance  # four jobs, each with five programs in the head pod
def test_a_job_is_kept_from_those_that_wait_and_not_from_those_that_run(
    kube: Kube, kube_backend: KubernetesBackend
) -> None:
    for name in ("machine1", "machine2", "machine3"):
        kube.put(ready(name))
    started(kube_backend)
    for number in range(2):
        kube.put(pod(f"smoke-1-{number}", job="smoke-1", phase="Running", machine=f"machine{number}"))
    started(kube_backend, nodes=3, queue=True)
    assert len(rules(kube, "smoke-2")) == 1, "smoke-1 has all of its machines"
    started(kube_backend, nodes=2, queue=True)
    for kind in ("Master", "Worker"):
        own, apart = rules(kube, "smoke-3", kind)
        assert own["topologyKey"] == "kubernetes.io/hostname" and apart["topologyKey"] == "kubernetes.io/os"
        expression = {"key": "trainyard.dev/job", "operator": "In", "values": ["smoke-2"]}
        assert apart["labelSelector"] == {"matchExpressions": [expression]}
    conditioned(kube, "smoke-2", "Failed")
    state(kube, "smoke-2", state="FAILED", ended=1.0)
    started(kube_backend, nodes=2, queue=True)
    assert len(rules(kube, "smoke-4")) == 1, "smoke-2 is over, and with smoke-3 it cannot be stuck"


@pytest.mark.acceptance  # likewise
def test_machines_that_take_no_pods_do_not_count(kube: Kube, kube_backend: KubernetesBackend) -> None:
    kube.put(ready("machine1"))
    kube.put(ready("machine2"))
    started(kube_backend)
    started(kube_backend, queue=True)
    assert len(rules(kube, "smoke-2")) == 2, "each could have one of two"
    kube.refuse("nodes", 403, "nodes is forbidden")
    started(kube_backend, queue=True)
    assert len(rules(kube, "smoke-3")) == 2, "three that wait are too many for three machines, too"


def test_who_waits_says_for_whom(kube: Kube, kube_backend: KubernetesBackend) -> None:
    started(kube_backend)
    started(kube_backend, queue=True)
    for number in range(2):
        kube.put(pod(f"smoke-1-{number}", job="smoke-1", phase="Running", machine=f"machine{number}"))
        kube.put(pod(f"smoke-2-{number}", job="smoke-2", **unschedulable(BUSY)))
    said = {job.id: job.reason for job in kube_backend.jobs()}
    assert said["smoke-2"] == "0/3 nodes are available: 3 busy with smoke-1 (2)"
    assert waiting.said("0/3 nodes are available: 3 Insufficient cpu", "smoke-2", ()).endswith("Insufficient cpu")
