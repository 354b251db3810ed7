"""Jobs on Kubernetes from the operator's side: ended, stopped, left over, followed and read. The API is a server of the
test's own, and the head pod's programs are real ones, run on this machine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from invoke.exceptions import Exit
from kube_cluster import Kube, deployed, pod
from kube_job import conditioned, failure, run_dir, started, state, waiting

from fabfile.backends.base import JobState, LogRequest, Unreachable
from fabfile.backends.kubernetes import backend as backends
from fabfile.backends.kubernetes.backend import KubernetesBackend


def ended_pod(reason: str, code: int) -> dict[str, Any]:
    status = {"name": "pytorch", "image": "i:1", "imageID": "", "restartCount": 0, "ready": False}
    return {"containerStatuses": [{**status, "state": {"terminated": {"reason": reason, "exitCode": code}}}]}


def test_an_end_that_no_supervisor_has_recorded_is_recorded_once(kube: Kube, kube_backend: KubernetesBackend) -> None:
    for _ in range(3):
        started(kube_backend)
    conditioned(kube, "smoke-1", "Failed", "PyTorchJob smoke-1 is failed because 1 Master replica(s) failed.")
    dead = pod("smoke-1-master-0", job="smoke-1", phase="Failed", machine="machine1", **ended_pod("OOMKilled", 137))
    kube.put(dead)
    del kube.objects[("PyTorchJob", "smoke-2")]
    state(kube, "smoke-2", created=time.time() - 61)
    del kube.objects[("PyTorchJob", "smoke-3")]  # whose record was made just now
    first, second, third = kube_backend.jobs()
    killed = "pod smoke-1-master-0 on machine1: killed for want of memory (OOMKilled)"
    assert (first.state, first.reason, first.exit_code) == (JobState.FAILED, killed, 1)
    assert (second.state, second.reason) == (JobState.FAILED, "it is gone from Kubernetes: somebody has deleted it")
    assert third.state == JobState.PENDING
    assert state(kube, "smoke-1")["reason"] == killed and killed in (run_dir(kube, "smoke-1") / "log").read_text()
    kube.objects.clear()
    kube.put({"apiVersion": "v1", "kind": "Deployment", "metadata": {"name": "x"}})
    assert kube_backend.jobs()[0].reason == killed, "what is recorded is not judged again"


def test_a_job_that_somebody_else_applied_is_shown_as_theirs(kube: Kube, kube_backend: KubernetesBackend) -> None:
    started(kube_backend)
    replicas = {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}
    metadata = {
        **{"name": "by-hand", "namespace": "train", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "managedFields": [{"manager": "kubectl-client-side-apply"}],
    }
    spec = {"pytorchReplicaSpecs": replicas}
    kube.put({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata, "spec": spec})
    conditioned(kube, "by-hand", "Running")
    (other,) = kube_backend.other_jobs()
    assert (other.id, other.state, other.count, other.scheduler) == ("by-hand", "RUNNING", 4, "kubernetes")
    assert other.user == "kubectl-client-side-apply" and other.submitted == 1767225600.0
    assert [job.id for job in kube_backend.jobs()] == ["smoke-1"]


def test_a_job_that_waits_is_stopped_by_deleting_it(kube: Kube, kube_backend: KubernetesBackend) -> None:
    started(kube_backend)
    kube_backend.stop("smoke-1", now=False)
    (job,) = kube_backend.jobs()
    assert (job.state, job.reason) == (JobState.CANCELLED, "stopped before it started")
    assert kube.deleted == [("PyTorchJob", "smoke-1")] and kube_backend.leftovers("smoke-1") == {}


def test_a_running_job_is_asked_to_stop_and_deleted_only_if_it_does_not(
    kube: Kube, kube_backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(kube_backend)
    state(kube, "smoke-1", state="RUNNING", started=time.time(), nodes=["machine1"])
    kube_backend.stop("smoke-1", now=False)
    assert json.loads((run_dir(kube, "smoke-1") / "stop.json").read_text()) == {"how": "stop"} and not kube.deleted
    monkeypatch.setattr(backends, "_NOW_SECONDS", 0.5)
    kube_backend.stop("smoke-1", now=True)
    assert kube.deleted == [("PyTorchJob", "smoke-1")]
    assert state(kube, "smoke-1")["state"] == "CANCELLED" and state(kube, "smoke-1")["reason"] == "stopped at once"


def test_pods_that_outlive_their_job_are_deleted_and_named(
    kube: Kube, kube_backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "_LEFT_SECONDS", 1.0)
    kube.put(pod("smoke-1-worker-0", job="smoke-1", phase="Running", machine="machine2"))
    kube.put(pod("smoke-1-master-0", job="smoke-1", phase="Succeeded", machine="machine1"))
    assert kube_backend.leftovers("smoke-1") == {} and kube.deleted == [("Pod", "smoke-1-worker-0")]
    kube.put(pod("smoke-1-worker-0", job="smoke-1", phase="Running", machine="machine2"))
    kube.refuse("pods/smoke-1-worker-0", 200, "", method="DELETE")  # accepted, and it stays: its machine is dead
    assert kube_backend.leftovers("smoke-1") == {"machine2": "pod smoke-1-worker-0"}


@pytest.mark.acceptance  # ten programs in the head pod
def test_a_follower_hears_why_a_job_waits_and_how_it_ended(kube: Kube, kube_backend: KubernetesBackend) -> None:
    started(kube_backend)
    kube.put(pod("smoke-1-master-0", job="smoke-1", **waiting("ErrImagePull", "not found")))
    lines, last = [], None
    for part in kube_backend.logs(LogRequest("smoke-1")):
        lines += [line.text for line in part.lines]
        last = part.job
        if last:
            break
        if lines and ("PyTorchJob", "smoke-1") in kube.objects:
            conditioned(kube, "smoke-1", "Failed", "gone wrong")
    assert lines[0] == "image i:1: ErrImagePull: not found"
    assert last is not None and (last.state, last.reason) == (JobState.FAILED, "gone wrong")
    assert lines[-1] == "smoke-1 FAILED: gone wrong"


@pytest.mark.acceptance  # likewise
def test_a_follower_asks_again_while_the_api_is_away(kube: Kube, kube_backend: KubernetesBackend) -> None:
    started(kube_backend)
    kube_backend.jobs()
    kube.refuse("/", 503, "the server is currently unable to handle the request")
    with pytest.raises(Unreachable, match="unable to handle the request"):
        list(kube_backend.logs(LogRequest("smoke-1")))
    kube.refusals.clear()
    kube.play = lambda streams: streams.end(137)
    with pytest.raises(Unreachable):  # the head pod is deleted, and another one comes
        list(kube_backend.logs(LogRequest("smoke-1")))
    kube.play = lambda streams: streams.sock.close()
    with pytest.raises(Unreachable):  # a machine that dies takes the head pod, and what runs in it
        list(kube_backend.logs(LogRequest("smoke-1")))
    kube.play = None
    with pytest.raises(Unreachable, match="the program was not run to its end"):
        for part in kube_backend.logs(LogRequest("smoke-1")):
            assert part.job is None
            kube.play = lambda streams: streams.send(3, failure("connection reset by peer"))
    kube.play = None
    state(kube, "smoke-1", state="SUCCEEDED", ended=1.0)
    assert next(part.job.state for part in kube_backend.logs(LogRequest("smoke-1")) if part.job) == "SUCCEEDED"


@pytest.mark.acceptance  # eight programs in the head pod
def test_a_jobs_files_come_from_the_shared_volume(kube: Kube, kube_backend: KubernetesBackend, tmp_path: Path) -> None:
    started(kube_backend)
    content = bytes(range(256)) * 4000
    (run_dir(kube, "smoke-1") / "best").mkdir()
    (run_dir(kube, "smoke-1") / "best/model.safetensors").write_bytes(content)
    there = dict(kube_backend.files("smoke-1"))
    assert {"best", "best/model.safetensors", "job.toml", "state.json"} <= there.keys() and "spec.json" not in there
    into = tmp_path / "here"
    into.mkdir()
    names = ["best/model.safetensors", "job.toml"]
    assert kube_backend.fetch("smoke-1", names, into, 1 << 24, lambda size: None)["best/model.safetensors"] == len(
        content
    )
    assert (into / "best/model.safetensors").read_bytes() == content
    (data,) = kube_backend.run_data(["smoke-1"])
    assert data["id"] == "smoke-1"


def test_a_head_pod_that_does_not_start_says_why(
    kube: Kube, kube_backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fabfile.backends.kubernetes import head_pod

    monkeypatch.setattr(head_pod, "NO_IMAGE", 1.2)
    monkeypatch.setattr(head_pod, "_SAY", 0.1)

    def stuck(kube: Kube, one: dict[str, Any]) -> None:
        deployed(kube, one)
        running = kube.objects.pop(("Pod", "trainyard-head-x"), None)
        if running:
            status = {"phase": "Pending", **waiting("ImagePullBackOff", 'Back-off pulling image "i:1"')}
            kube.put({**running, "status": status})

    kube.on_apply = stuck
    with pytest.raises(Exit, match=r"trainyard-head: does not run after . s: image i:1: ImagePullBackOff"):
        kube_backend.jobs()
    assert "waiting for the pod that the jobs' files are read in" in capsys.readouterr().out
