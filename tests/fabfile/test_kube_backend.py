"""Jobs on Kubernetes from the operator's side: started, refused, and why they wait. The API is a server of the test's
own, and the head pod's programs are real ones, run on this machine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from invoke.exceptions import Exit
from kube_cluster import Kube, pod
from kube_job import conditioned, run_dir, started, state, submission, unschedulable, waiting, warning

from fabfile.backends.base import CannotStart, JobState
from fabfile.backends.kubernetes import start
from fabfile.backends.kubernetes.backend import KubernetesBackend
from node.job import files


def test_a_job_has_a_record_a_directory_and_a_pytorchjob(kube: Kube, kube_backend: KubernetesBackend) -> None:
    made = started(kube_backend)
    assert made.id == "smoke-1" and made.where == "2 machines, as the PyTorchJob smoke-1"
    spec = files.read(run_dir(kube, "smoke-1") / "spec.json")
    assert spec["launcher"] == "kubernetes" and spec["count"] == 2 and not spec["has_secrets"]
    assert state(kube, "smoke-1")["kubernetes"] is True and state(kube, "smoke-1")["nodes"] == []
    job = kube.objects[("PyTorchJob", "smoke-1")]
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    program = container["command"][5]
    run = container["command"][7]
    assert Path(program).is_file() and Path(program).parent == Path(spec["code"]), "what the pods run is there"
    assert run == str(run_dir(kube, "smoke-1"))
    assert ("Secret", "smoke-1") not in kube.objects
    assert started(kube_backend).id == "smoke-2"


def test_secrets_are_in_a_secret_of_the_job_and_on_no_disk(
    kube: Kube, kube_backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hunter2hunter2")
    started(kube_backend)
    secret = kube.objects[("Secret", "smoke-1")]
    assert secret["data"] == {"WANDB_API_KEY": "aHVudGVyMmh1bnRlcjI="}
    assert secret["metadata"]["ownerReferences"][0]["uid"] == kube.objects[("PyTorchJob", "smoke-1")]["metadata"]["uid"]
    order = [one["kind"] for one in kube.applied if one["kind"] != "Deployment"]
    assert order == ["Secret", "PyTorchJob", "Secret"], "before the pods, which read it once"
    for path in Path(kube.cluster.shared_dir).rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path


def test_a_job_that_the_api_refuses_leaves_nothing(
    kube: Kube, kube_backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hunter2")
    why = 'admission webhook "v" denied the request: no'
    kube.refuse("pytorchjobs", 403, why, method="PATCH")
    with pytest.raises(Exit) as refused:
        started(kube_backend)
    assert refused.value.code == 1 and why in str(refused.value.message)
    assert not run_dir(kube, "smoke-1").exists() and ("Secret", "smoke-1") not in kube.objects
    kube.refusals.clear()
    assert started(kube_backend).id == "smoke-1", "its number is free again"


@pytest.mark.acceptance  # ten programs in the head pod
def test_a_resumed_job_takes_the_place_of_its_old_pytorchjob(kube: Kube, kube_backend: KubernetesBackend) -> None:
    started(kube_backend)
    state(kube, "smoke-1", state="CANCELLED", started=1.0, ended=2.0, attempt=1)
    kube.put(pod("smoke-1-master-0", job="smoke-1", phase="Failed"))
    begun = kube_backend.begun("smoke-1")
    assert begun.nodes == 2 and begun.text == submission().text
    assert started(kube_backend, begun=begun).id == "smoke-1"
    assert kube.deleted == [("PyTorchJob", "smoke-1")] and ("Pod", "smoke-1-master-0") not in kube.objects
    assert state(kube, "smoke-1")["state"] == "PENDING" and ("PyTorchJob", "smoke-1") in kube.objects
    state(kube, "smoke-1", state="FAILED", reason="before", ended=3.0)
    kube.refuse("pytorchjobs", 500, "no", method="PATCH")
    with pytest.raises(Exit, match="no\nthe job was not started"):
        started(kube_backend, begun=begun)
    assert state(kube, "smoke-1")["reason"] == "before", "a resumed job that is refused is what it was"


@pytest.mark.acceptance  # eight programs in the head pod
def test_earlier_pods_that_do_not_go_are_named(
    kube: Kube, kube_backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_GONE_SECONDS", 0.3)
    started(kube_backend)
    state(kube, "smoke-1", state="FAILED", ended=2.0)
    stuck = pod("smoke-1-worker-0", job="smoke-1", phase="Running", machine="machine2")
    kube.put({**stuck, "metadata": {**stuck["metadata"], "finalizers": ["x"]}})
    with pytest.raises(Exit, match="smoke-1: its earlier pods are not gone after 0 s: smoke-1-worker-0"):
        started(kube_backend, begun=kube_backend.begun("smoke-1"))
    assert state(kube, "smoke-1")["state"] == "FAILED"


@pytest.mark.acceptance  # likewise
def test_pods_on_a_dead_machine_do_not_keep_a_job_from_going_on(kube: Kube, kube_backend: KubernetesBackend) -> None:
    started(kube_backend)
    state(kube, "smoke-1", state="FAILED", ended=2.0)
    stuck = pod("smoke-1-worker-0", job="smoke-1", phase="Running", machine="machine2")
    long_ago = {"finalizers": ["its kubelet"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    kube.put({**stuck, "metadata": {**stuck["metadata"], **long_ago}})
    assert started(kube_backend, begun=kube_backend.begun("smoke-1")).id == "smoke-1"
    assert kube.deleted == [("PyTorchJob", "smoke-1"), ("Pod", "smoke-1-worker-0")]
    assert kube.at_once == ["smoke-1-worker-0"], "which Kubernetes would wait for for ever"
    kube.put({**stuck, "metadata": {**stuck["metadata"], **long_ago}})
    assert kube_backend.leftovers("smoke-1") == {} and kube.at_once == ["smoke-1-worker-0"] * 2


def test_machines_that_others_have_are_named_unless_it_may_wait(kube: Kube, kube_backend: KubernetesBackend) -> None:
    started(kube_backend)
    with pytest.raises(CannotStart, match=r"^1 of 3 machines free, 2 wanted; busy with smoke-1 \(2\)$"):
        kube_backend.prepare(submission())
    conditioned(kube, "smoke-1", "Succeeded")
    state(kube, "smoke-1", state="SUCCEEDED", ended=1.0)
    start.refuse_busy(3, 3, {})


QUOTA = 'pods "smoke-1-master-0" is forbidden: exceeded quota: gpus, requested: nvidia.com/gpu=8'
PULL = (
    'rpc error: code = NotFound desc = failed to pull and unpack image "i:1": failed to resolve reference "i:1": i:1: '
    "not found"
)
WAITING = (
    (
        unschedulable("0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are ..."),
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu",
    ),
    (waiting("ErrImagePull", PULL), "image i:1: ErrImagePull: i:1: not found"),
    (waiting("CreateContainerConfigError", 'secret "x" not found'), "CreateContainerConfigError"),
    (waiting("ContainerCreating", ""), "MountVolume.SetUp failed: no such claim"),
)
"""The status of a pod, and what is said of its job."""


def test_a_job_that_waits_says_why(kube: Kube, kube_backend: KubernetesBackend) -> None:
    started(kube_backend)
    kube.put(warning("e1", "PyTorchJob", "smoke-1", "older", "2026-01-01T00:00:00Z"))
    kube.put(warning("e2", "PyTorchJob", "smoke-1", QUOTA, "2026-01-01T00:00:01Z"))
    kube.put({**warning("e0", "Pod", "smoke-1-pod-0", "no DNS", "2027-01-01T00:00:00Z"), "reason": "MissingClusterDNS"})
    kube.put(warning("e3", "Pod", "smoke-1-pod-0", "MountVolume.SetUp failed: no such claim", "2026-01-01T00:00:00Z"))
    (job,) = kube_backend.jobs()
    assert job.state == JobState.PENDING and job.reason.startswith(QUOTA), "it has no pods"
    for status, reason in WAITING:
        for number in range(2):
            kube.put(pod(f"smoke-1-pod-{number}", job="smoke-1", **status))
        (job,) = kube_backend.jobs()
        assert job.state == JobState.PENDING and job.reason.startswith(reason)


def test_a_lost_pod_of_a_running_job_is_told_and_it_runs_on(kube: Kube, kube_backend: KubernetesBackend) -> None:
    started(kube_backend)
    state(kube, "smoke-1", state="RUNNING", started=time.time(), nodes=["machine1", "machine2"])
    kube.put(pod("smoke-1-master-0", job="smoke-1", phase="Running", machine="machine1"))
    (job,) = kube_backend.jobs()
    assert (job.state, job.reason, job.nodes) == (JobState.RUNNING, "", ("machine1", "machine2"))
    kube.put(pod("smoke-1-worker-0", job="smoke-1", **unschedulable("0/3 nodes are available")))
    (job,) = kube_backend.jobs()
    assert (job.state, job.reason) == (JobState.RUNNING, "1 of 2 pods wait: 0/3 nodes are available")
    kube.objects.pop(("Pod", "smoke-1-worker-0"))
    kube.put(warning("e1", "PyTorchJob", "smoke-1", "exceeded quota: q", "2026-01-01T00:00:00Z"))
    assert kube_backend.jobs()[0].reason == "1 of 2 pods wait: exceeded quota: q", (
        "a pod that could not be made waits, too"
    )
