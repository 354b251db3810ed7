"""Jobs on Kubernetes from the operator's side: started, refused, merged with what the API says, stopped, read. The API
is a server of the test's own, and the head pod's programs are real ones, run on this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from invoke.exceptions import Exit
from kube_cluster import Kube, deployed, pod, served

from fabfile.backends.base import CannotStart, JobState, LogRequest, Submission, Submitted, Unreachable
from fabfile.backends.kubernetes import backend as backends
from fabfile.backends.kubernetes import start
from fabfile.backends.kubernetes.backend import KubernetesBackend
from fabfile.job_file import resolve
from node.job import files


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    with served(tmp_path_factory.mktemp("kube")) as made:
        yield made


@pytest.fixture
def kube(server: Kube) -> Iterator[Kube]:
    server.clear()
    yield server


@pytest.fixture
def backend(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesBackend]:
    monkeypatch.setattr(backends, "_LOOK", 0.1)
    monkeypatch.setattr(backends, "_LOOK_BEGUN", 0.1)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with KubernetesBackend(kube.cluster) as found:
        yield found


def submission(**changes: Any) -> Submission:
    return replace(Submission(job=resolve("smoke", (), 2), nodes=2), **changes)


def started(backend: KubernetesBackend, **changes: Any) -> Submitted:
    return backend.submit(submission(**changes))


def run_dir(kube: Kube, job: str) -> Path:
    return Path(kube.cluster.shared_dir) / "runs" / job


def state(kube: Kube, job: str, **changes: Any) -> files.Record:
    """A job's record on the shared volume, changed as its supervisor does it."""
    path = run_dir(kube, job) / "state.json"
    record = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps(record))
    return record


def waiting(reason: str, message: str) -> dict[str, Any]:
    status = {"name": "pytorch", "image": "i:1", "imageID": "", "restartCount": 0, "ready": False}
    return {"containerStatuses": [{**status, "state": {"waiting": {"reason": reason, "message": message}}}]}


def failure(message: str) -> bytes:
    return json.dumps({"status": "Failure", "reason": "InternalError", "message": message}).encode()


def unschedulable(message: str) -> dict[str, Any]:
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"conditions": [said]}


def warning(name: str, kind: str, about: str, message: str, when: str) -> dict[str, Any]:
    return {
        **{"apiVersion": "v1", "kind": "Event", "type": "Warning", "message": message, "lastTimestamp": when},
        **{"metadata": {"name": name}, "involvedObject": {"kind": kind, "name": about}},
    }


def conditioned(kube: Kube, job: str, kind: str, message: str = "") -> None:
    one = kube.objects[("PyTorchJob", job)]
    said = {"type": kind, "status": "True", "message": message, "reason": kind}
    kube.put({**one, "status": {"conditions": [said]}})


def test_a_job_has_a_record_a_directory_and_a_pytorchjob(kube: Kube, backend: KubernetesBackend) -> None:
    made = started(backend)
    assert made.id == "smoke-1" and made.where == "2 machines, as the PyTorchJob smoke-1"
    spec = files.read(run_dir(kube, "smoke-1") / "spec.json")
    assert spec["launcher"] == "kubernetes" and spec["count"] == 2 and not spec["has_secrets"]
    assert state(kube, "smoke-1")["kubernetes"] is True and state(kube, "smoke-1")["nodes"] == []
    job = kube.objects[("PyTorchJob", "smoke-1")]
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    program, run = container["command"][2], container["command"][4]
    assert Path(program).is_file() and Path(program).parent == Path(spec["code"]), "what the pods run is there"
    assert run == str(run_dir(kube, "smoke-1"))
    assert ("Secret", "smoke-1") not in kube.objects
    assert started(backend).id == "smoke-2"


def test_secrets_are_in_a_secret_of_the_job_and_on_no_disk(
    kube: Kube, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hunter2hunter2")
    started(backend)
    secret = kube.objects[("Secret", "smoke-1")]
    assert secret["data"] == {"WANDB_API_KEY": "aHVudGVyMmh1bnRlcjI="}
    assert secret["metadata"]["ownerReferences"][0]["uid"] == kube.objects[("PyTorchJob", "smoke-1")]["metadata"]["uid"]
    order = [one["kind"] for one in kube.applied if one["kind"] != "Deployment"]
    assert order == ["Secret", "PyTorchJob", "Secret"], "before the pods, which read it once"
    for path in Path(kube.cluster.shared_dir).rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path


def test_a_job_that_the_api_refuses_leaves_nothing(
    kube: Kube, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hunter2")
    why = 'admission webhook "v" denied the request: no'
    kube.refuse("pytorchjobs", 403, why, method="PATCH")
    with pytest.raises(Exit) as refused:
        started(backend)
    assert refused.value.code == 1 and why in str(refused.value.message)
    assert not run_dir(kube, "smoke-1").exists() and ("Secret", "smoke-1") not in kube.objects
    kube.refusals.clear()
    assert started(backend).id == "smoke-1", "its number is free again"


def test_a_resumed_job_takes_the_place_of_its_old_pytorchjob(kube: Kube, backend: KubernetesBackend) -> None:
    started(backend)
    state(kube, "smoke-1", state="CANCELLED", started=1.0, ended=2.0, attempt=1)
    kube.put(pod("smoke-1-master-0", job="smoke-1", phase="Failed"))
    begun = backend.begun("smoke-1")
    assert begun.nodes == 2 and begun.text == submission().text
    assert started(backend, begun=begun).id == "smoke-1"
    assert kube.deleted == [("PyTorchJob", "smoke-1")] and ("Pod", "smoke-1-master-0") not in kube.objects
    assert state(kube, "smoke-1")["state"] == "PENDING" and ("PyTorchJob", "smoke-1") in kube.objects
    state(kube, "smoke-1", state="FAILED", reason="before", ended=3.0)
    kube.refuse("pytorchjobs", 500, "no", method="PATCH")
    with pytest.raises(Exit, match="no\nthe job was not started"):
        started(backend, begun=begun)
    assert state(kube, "smoke-1")["reason"] == "before", "a resumed job that is refused is what it was"


def test_earlier_pods_that_do_not_go_are_named(
    kube: Kube, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_GONE_SECONDS", 0.3)
    started(backend)
    state(kube, "smoke-1", state="FAILED", ended=2.0)
    stuck = pod("smoke-1-worker-0", job="smoke-1", phase="Running", machine="machine2")
    kube.put({**stuck, "metadata": {**stuck["metadata"], "finalizers": ["x"]}})
    with pytest.raises(Exit, match="smoke-1: its earlier pods are not gone after 0 s: smoke-1-worker-0"):
        started(backend, begun=backend.begun("smoke-1"))
    assert state(kube, "smoke-1")["state"] == "FAILED"


def test_pods_on_a_dead_machine_do_not_keep_a_job_from_going_on(kube: Kube, backend: KubernetesBackend) -> None:
    started(backend)
    state(kube, "smoke-1", state="FAILED", ended=2.0)
    stuck = pod("smoke-1-worker-0", job="smoke-1", phase="Running", machine="machine2")
    long_ago = {"finalizers": ["its kubelet"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    kube.put({**stuck, "metadata": {**stuck["metadata"], **long_ago}})
    assert started(backend, begun=backend.begun("smoke-1")).id == "smoke-1"
    assert kube.deleted == [("PyTorchJob", "smoke-1"), ("Pod", "smoke-1-worker-0")]
    assert kube.at_once == ["smoke-1-worker-0"], "which Kubernetes would wait for for ever"
    kube.put({**stuck, "metadata": {**stuck["metadata"], **long_ago}})
    assert backend.leftovers("smoke-1") == {} and kube.at_once == ["smoke-1-worker-0"] * 2


def test_machines_that_other_jobs_have_are_named_unless_it_may_wait(kube: Kube, backend: KubernetesBackend) -> None:
    started(backend)
    with pytest.raises(CannotStart, match=r"^1 of 3 machines free, 2 wanted; busy with smoke-1 \(2\)$"):
        backend.prepare(submission())
    conditioned(kube, "smoke-1", "Succeeded")
    state(kube, "smoke-1", state="SUCCEEDED", ended=1.0)
    start.refuse_busy(3, 3, {})


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        (
            [unschedulable("0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are ...")]
            * 2,
            "0/3 nodes are available: 3 Insufficient nvidia.com/gpu",
        ),
        (
            [
                waiting(
                    "ErrImagePull",
                    'rpc error: code = NotFound desc = failed to pull and unpack image "i:1": failed to resolve '
                    'reference "i:1": i:1: not found',
                )
            ]
            * 2,
            "image i:1: ErrImagePull: i:1: not found",
        ),
        (
            [waiting("CreateContainerConfigError", 'secret "x" not found')] * 2,
            "CreateContainerConfigError",
        ),
        ([waiting("ContainerCreating", "")] * 2, "MountVolume.SetUp failed: no such claim"),
        ([], 'pods "smoke-1-master-0" is forbidden: exceeded quota: gpus, requested: nvidia.com/gpu=8'),
    ],
)
def test_a_job_that_waits_says_why(kube: Kube, backend: KubernetesBackend, pods: list[Any], said: str) -> None:
    started(backend)
    for number, status in enumerate(pods):
        kube.put(pod(f"smoke-1-pod-{number}", job="smoke-1", **status))

    quota = 'pods "smoke-1-master-0" is forbidden: exceeded quota: gpus, requested: nvidia.com/gpu=8'
    kube.put(warning("e1", "PyTorchJob", "smoke-1", "older", "2026-01-01T00:00:00Z"))
    kube.put(warning("e2", "PyTorchJob", "smoke-1", quota, "2026-01-01T00:00:01Z"))
    kube.put({**warning("e0", "Pod", "smoke-1-pod-0", "no DNS", "2027-01-01T00:00:00Z"), "reason": "MissingClusterDNS"})
    kube.put(warning("e3", "Pod", "smoke-1-pod-0", "MountVolume.SetUp failed: no such claim", "2026-01-01T00:00:00Z"))
    (job,) = backend.jobs()
    assert job.state == JobState.PENDING and job.reason.startswith(said)


def test_a_lost_pod_of_a_running_job_is_told_and_it_runs_on(kube: Kube, backend: KubernetesBackend) -> None:
    started(backend)
    state(kube, "smoke-1", state="RUNNING", started=time.time(), nodes=["machine1", "machine2"])
    kube.put(pod("smoke-1-master-0", job="smoke-1", phase="Running", machine="machine1"))
    (job,) = backend.jobs()
    assert (job.state, job.reason, job.nodes) == (JobState.RUNNING, "", ("machine1", "machine2"))
    kube.put(pod("smoke-1-worker-0", job="smoke-1", **unschedulable("0/3 nodes are available")))
    (job,) = backend.jobs()
    assert (job.state, job.reason) == (JobState.RUNNING, "1 of 2 pods wait: 0/3 nodes are available")
    kube.objects.pop(("Pod", "smoke-1-worker-0"))
    kube.put(warning("e1", "PyTorchJob", "smoke-1", "exceeded quota: q", "2026-01-01T00:00:00Z"))
    assert backend.jobs()[0].reason == "1 of 2 pods wait: exceeded quota: q", "a pod that could not be made waits, too"


def ended_pod(reason: str, code: int) -> dict[str, Any]:
    status = {"name": "pytorch", "image": "i:1", "imageID": "", "restartCount": 0, "ready": False}
    return {"containerStatuses": [{**status, "state": {"terminated": {"reason": reason, "exitCode": code}}}]}


def test_an_end_that_no_supervisor_has_recorded_is_recorded_once(kube: Kube, backend: KubernetesBackend) -> None:
    for _ in range(3):
        started(backend)
    conditioned(kube, "smoke-1", "Failed", "PyTorchJob smoke-1 is failed because 1 Master replica(s) failed.")
    dead = pod("smoke-1-master-0", job="smoke-1", phase="Failed", machine="machine1", **ended_pod("OOMKilled", 137))
    kube.put(dead)
    del kube.objects[("PyTorchJob", "smoke-2")]
    state(kube, "smoke-2", created=time.time() - 61)
    del kube.objects[("PyTorchJob", "smoke-3")]  # whose record was made just now
    first, second, third = backend.jobs()
    killed = "pod smoke-1-master-0 on machine1: killed for want of memory (OOMKilled)"
    assert (first.state, first.reason, first.exit_code) == (JobState.FAILED, killed, 1)
    assert (second.state, second.reason) == (JobState.FAILED, "its PyTorchJob is gone: somebody has deleted it")
    assert third.state == JobState.PENDING
    assert state(kube, "smoke-1")["reason"] == killed and killed in (run_dir(kube, "smoke-1") / "log").read_text()
    kube.objects.clear()
    kube.put({"apiVersion": "v1", "kind": "Deployment", "metadata": {"name": "x"}})
    assert backend.jobs()[0].reason == killed, "what is recorded is not judged again"


def test_a_job_that_somebody_else_applied_is_shown_as_theirs(kube: Kube, backend: KubernetesBackend) -> None:
    started(backend)
    replicas = {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}
    metadata = {
        **{"name": "by-hand", "namespace": "train", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "managedFields": [{"manager": "kubectl-client-side-apply"}],
    }
    spec = {"pytorchReplicaSpecs": replicas}
    kube.put({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata, "spec": spec})
    conditioned(kube, "by-hand", "Running")
    (other,) = backend.other_jobs()
    assert (other.id, other.state, other.count, other.scheduler) == ("by-hand", "RUNNING", 4, "kubernetes")
    assert other.user == "kubectl-client-side-apply" and other.submitted == 1767225600.0
    assert [job.id for job in backend.jobs()] == ["smoke-1"]


def test_a_job_that_waits_is_stopped_by_deleting_it(kube: Kube, backend: KubernetesBackend) -> None:
    started(backend)
    backend.stop("smoke-1", now=False)
    (job,) = backend.jobs()
    assert (job.state, job.reason) == (JobState.CANCELLED, "stopped before it started")
    assert kube.deleted == [("PyTorchJob", "smoke-1")] and backend.leftovers("smoke-1") == {}


def test_a_running_job_is_asked_to_stop_and_deleted_only_if_it_does_not(
    kube: Kube, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(backend)
    state(kube, "smoke-1", state="RUNNING", started=time.time(), nodes=["machine1"])
    backend.stop("smoke-1", now=False)
    assert json.loads((run_dir(kube, "smoke-1") / "stop.json").read_text()) == {"how": "stop"} and not kube.deleted
    monkeypatch.setattr(backends, "_NOW_SECONDS", 0.5)
    backend.stop("smoke-1", now=True)
    assert kube.deleted == [("PyTorchJob", "smoke-1")]
    assert state(kube, "smoke-1")["state"] == "CANCELLED" and state(kube, "smoke-1")["reason"] == "stopped at once"


def test_pods_that_outlive_their_job_are_deleted_and_named(
    kube: Kube, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "_LEFT_SECONDS", 1.0)
    kube.put(pod("smoke-1-worker-0", job="smoke-1", phase="Running", machine="machine2"))
    kube.put(pod("smoke-1-master-0", job="smoke-1", phase="Succeeded", machine="machine1"))
    assert backend.leftovers("smoke-1") == {} and kube.deleted == [("Pod", "smoke-1-worker-0")]
    kube.put(pod("smoke-1-worker-0", job="smoke-1", phase="Running", machine="machine2"))
    kube.refuse("pods/smoke-1-worker-0", 200, "", method="DELETE")  # accepted, and it stays: its machine is dead
    assert backend.leftovers("smoke-1") == {"machine2": "pod smoke-1-worker-0"}


def test_a_follower_hears_why_a_job_waits_and_how_it_ended(kube: Kube, backend: KubernetesBackend) -> None:
    started(backend)
    kube.put(pod("smoke-1-master-0", job="smoke-1", **waiting("ErrImagePull", "not found")))
    lines, last = [], None
    for part in backend.logs(LogRequest("smoke-1")):
        lines += [line.text for line in part.lines]
        last = part.job
        if last:
            break
        if lines and ("PyTorchJob", "smoke-1") in kube.objects:
            conditioned(kube, "smoke-1", "Failed", "gone wrong")
    assert lines[0] == "image i:1: ErrImagePull: not found"
    assert last is not None and (last.state, last.reason) == (JobState.FAILED, "gone wrong")
    assert lines[-1] == "smoke-1 FAILED: gone wrong"


def test_a_follower_asks_again_while_the_api_is_away(kube: Kube, backend: KubernetesBackend) -> None:
    started(backend)
    backend.jobs()
    kube.refuse("/", 503, "the server is currently unable to handle the request")
    with pytest.raises(Unreachable, match="unable to handle the request"):
        list(backend.logs(LogRequest("smoke-1")))
    kube.refusals.clear()
    kube.play = lambda streams: streams.end(137)
    with pytest.raises(Unreachable):  # the head pod is deleted, and another one comes
        list(backend.logs(LogRequest("smoke-1")))
    kube.play = lambda streams: streams.sock.close()
    with pytest.raises(Unreachable):  # a machine that dies takes the head pod, and what runs in it
        list(backend.logs(LogRequest("smoke-1")))
    kube.play = None
    with pytest.raises(Unreachable, match="the program was not run to its end"):
        for part in backend.logs(LogRequest("smoke-1")):
            assert part.job is None
            kube.play = lambda streams: streams.send(3, failure("connection reset by peer"))
    kube.play = None
    state(kube, "smoke-1", state="SUCCEEDED", ended=1.0)
    assert next(part.job.state for part in backend.logs(LogRequest("smoke-1")) if part.job) == "SUCCEEDED"


def test_a_jobs_files_come_from_the_shared_volume(kube: Kube, backend: KubernetesBackend, tmp_path: Path) -> None:
    started(backend)
    content = bytes(range(256)) * 4000
    (run_dir(kube, "smoke-1") / "best").mkdir()
    (run_dir(kube, "smoke-1") / "best/model.safetensors").write_bytes(content)
    there = dict(backend.files("smoke-1"))
    assert {"best", "best/model.safetensors", "job.toml", "state.json"} <= there.keys() and "spec.json" not in there
    into = tmp_path / "here"
    into.mkdir()
    names = ["best/model.safetensors", "job.toml"]
    assert backend.fetch("smoke-1", names, into, 1 << 24, lambda size: None)["best/model.safetensors"] == len(content)
    assert (into / "best/model.safetensors").read_bytes() == content
    (data,) = backend.run_data(["smoke-1"])
    assert data["id"] == "smoke-1"


def test_a_head_pod_that_does_not_start_says_why(
    kube: Kube, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
        backend.jobs()
    assert "waiting for the pod that the jobs' files are read in" in capsys.readouterr().out
