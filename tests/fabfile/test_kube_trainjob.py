"""A job as a TrainJob: its manifest in full, the same pods as a PyTorchJob's, and what the verbs do with it.

tests/acceptance/test_kubernetes.py holds it against the published definitions, which are 1.5 MB.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from inventory_values import KUBE_CLUSTERS
from invoke.exceptions import Exit
from kube_cluster import Kube
from kube_examples import CPUS, GPUS, JOB

from fabfile.backends.base import CannotStart, JobState
from fabfile.backends.kubernetes import job_object, pods, pytorchjob, start, trainjob, view
from fabfile.backends.kubernetes.api import Api
from fabfile.backends.kubernetes.backend import KubernetesBackend
from fabfile.backends.kubernetes.pod_template import PodJob
from fabfile.backends.submission import Begun, Submission
from fabfile.check import kubernetes as rules
from fabfile.job_file import resolve
from fabfile.remote.node_program import digest
from infra.inventory import KubeCluster, from_json, to_json
from node.checked_program import words

GOLDEN = [Path(__file__).with_name(f"{kind}.yaml") for kind in ("trainingruntime", "trainjob")]
SHOWN = replace(GPUS, job_kind="TrainJob")


def submission(**changes: Any) -> Submission:
    return Submission(job=resolve("smoke", ["train.steps=3"], 3), nodes=2, **changes)


def indexed_job(cluster: KubeCluster, job: PodJob) -> dict[str, Any]:
    runtime, _ = trainjob.rendered(cluster, job)
    (of_job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    found: dict[str, Any] = of_job["template"]["spec"]
    return found


def test_the_manifest_is_this_one() -> None:
    shown = json.dumps(trainjob.rendered(GPUS, JOB))
    _, check, sha256 = words(digest())
    shown = shown.replace(json.dumps(check), '"CHECK"').replace(sha256, "SHA256")
    assert [yaml.safe_load(file.read_text()) for file in GOLDEN] == json.loads(shown)


@settings(max_examples=30)  # each renders both kinds
@given(
    KUBE_CLUSTERS.filter(lambda cluster: cluster.shared_dir),
    st.integers(1, 9),
    st.booleans(),
)
def test_the_pods_are_those_of_a_pytorchjob(cluster: KubeCluster, nodes: int, all_get_secrets: bool) -> None:
    """But for what the two operators differ in: a name, a pod's number, its restart, and who gets the secrets."""
    job = replace(JOB, nodes=nodes, all_get_secrets=all_get_secrets)
    replicas = pytorchjob.rendered(cluster, job)["spec"]["pytorchReplicaSpecs"]
    runtime, asked = trainjob.rendered(cluster, job)
    assert runtime["spec"]["mlPolicy"]["numNodes"] == sum(each["replicas"] for each in replicas.values()) == nodes
    assert asked["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    template = indexed_job(cluster, job)["template"]
    (container,) = template["spec"]["containers"]
    assert container.pop("name") == "node" and template["spec"].pop("restartPolicy") == "Never"
    number = container["env"].pop()
    assert number["name"] == "RANK" and "job-completion-index" in number["valueFrom"]["fieldRef"]["fieldPath"]
    secrets = container.pop("envFrom")
    for kind, each in replicas.items():
        (other,) = each["template"]["spec"]["containers"]
        assert other.pop("name") == "pytorch"
        assert other.pop("envFrom", None) == (secrets if kind == "Master" or all_get_secrets else None)
        assert each["template"] == template


def test_the_first_pod_decides_and_a_signal_makes_a_new_one() -> None:
    """As Kubernetes reads the rules: the first that fits is taken."""
    job = indexed_job(CPUS, JOB)
    assert job["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]} and job["completionMode"] == "Indexed"

    def action(code: int) -> str:
        for rule in job["podFailurePolicy"]["rules"]:
            codes = rule.get("onExitCodes", {"operator": "NotIn", "values": [code]})
            if (code in codes["values"]) == (codes["operator"] == "In"):
                return str(rule["action"])
        raise AssertionError(code)

    assert {action(code) for code in range(1, 128)} == {"FailJob"}
    assert {action(code) for code in range(128, 256)} == {"Ignore"}
    assert job["backoffLimit"] == 2**31 - 1


def test_the_names_of_its_pods_are_no_longer_than_kubernetes_allows() -> None:
    """JobSet refuses a longer one. The last part is the Job's own, of five letters."""
    longest = "a" * 40
    start.check(SHOWN, submission(begun=Begun(longest, "", 2)))
    assert len(f"{longest}-9999-{pods.TRAINER_NODE}-0-1023-abcde") <= 63
    with pytest.raises(Exit, match="at most 40 letters"):
        start.check(SHOWN, submission(begun=Begun(longest + "a", "", 2)))


def test_the_kind_is_written_only_where_it_is_not_the_usual_one() -> None:
    assert "job_kind" not in json.loads(to_json(GPUS))
    assert from_json(to_json(SHOWN)) == SHOWN
    with pytest.raises(ValueError, match="job_kind = 'MPIJob': must be 'PyTorchJob' or 'TrainJob'"):
        from_json(json.dumps({**json.loads(to_json(GPUS)), "job_kind": "MPIJob"}))


def test_a_dry_run_prints_it_as_it_can_be_applied() -> None:
    with KubernetesBackend(SHOWN) as backend:
        text = backend.plan(submission())
    manifest, _, rest = text.partition("\n\n")
    runtime, asked = yaml.safe_load_all(manifest)
    assert (runtime["kind"], asked["kind"]) == ("TrainingRuntime", "TrainJob"), "Trainer wants them in this order"
    assert "&id" not in manifest and "TrainJob smoke-N" not in rest and "training.train" in rest
    assert "PyTorchJob" in start.shown(GPUS, view.of(GPUS), submission())


def test_a_job_is_submitted_with_its_runtime_which_goes_with_it(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    """And with its secrets; applied before it, and then as its own."""
    monkeypatch.setenv("WANDB_API_KEY", "k")
    backend = KubernetesBackend(replace(kube.cluster, job_kind="TrainJob"))
    with backend:
        made = backend.submit(submission())
        assert made.where == "2 machines, as the TrainJob smoke-1"
        order = [one["kind"] for one in kube.applied if one["kind"] != "Deployment"]
        assert order == ["TrainingRuntime", "Secret", "TrainJob", "TrainingRuntime", "Secret"]
        for kind in ("TrainingRuntime", "Secret"):
            (owner,) = kube.objects[(kind, "smoke-1")]["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["name"]) == ("TrainJob", "smoke-1")
        with pytest.raises(CannotStart, match=r"busy with smoke-1 \(2\)"):
            backend.prepare(submission())
        backend.stop("smoke-1", now=False)
        assert [job.state for job in backend.jobs()] == [JobState.CANCELLED]
        assert ("TrainJob", "smoke-1") in kube.deleted
        backend.forget("smoke-1")
    assert ("TrainingRuntime", "smoke-1") not in kube.objects


def test_one_that_trainer_refuses_leaves_nothing(kube: Kube) -> None:
    kube.refuse("trainjobs", 403, "admission webhook denied the request: no", method="PATCH")
    backend = KubernetesBackend(replace(kube.cluster, job_kind="TrainJob"))
    with backend, pytest.raises(Exit, match="no\nthe job was not started"):
        backend.submit(submission())
    assert {kind for kind, _ in kube.objects} <= {"Deployment", "Pod"}


@pytest.mark.acceptance  # eight programs in the head pod
def test_a_runtime_that_trainer_does_not_see_yet_is_waited_for(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainer has a copy of the API's objects, which is late at times."""
    monkeypatch.setattr(start, "_POLL", 0.01)
    said = "not found: specified trainingRuntime must be created before the TrainJob is created"
    kube.refuse("trainjobs", 422, said, method="PATCH")
    asked = iter(range(3))
    (is_meant, code, status), *_ = kube.refusals
    kube.refusals[:] = [(lambda verb, path: is_meant(verb, path) and next(asked, None) is not None, code, status)]
    with KubernetesBackend(replace(kube.cluster, job_kind="TrainJob")) as backend:
        assert backend.submit(submission()).id == "smoke-1"
        monkeypatch.setattr(start, "_SEEN_SECONDS", 0.0)
        kube.refuse("trainjobs", 422, said, method="PATCH")
        with pytest.raises(Exit, match="specified trainingRuntime must be created"):
            backend.submit(submission())


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({}, "PENDING"),
        ({"jobsStatus": [{"name": "node", "ready": 0, "active": 2}]}, "PENDING"),
        ({"jobsStatus": [{"name": "node", "ready": 1, "active": 2}]}, "RUNNING"),
        ({"conditions": [{"type": "Complete", "status": "True"}]}, "SUCCEEDED"),
        ({"conditions": [{"type": "Failed", "status": "True", "message": "m"}]}, "FAILED"),
        ({"conditions": [{"type": "Suspended", "status": "True"}]}, "SUSPENDED"),
        ({"conditions": [{"type": "Suspended", "status": "False"}]}, "PENDING"),
    ],
)
def test_the_state_is_what_trainer_says_of_it(status: dict[str, Any], state: str) -> None:
    assert job_object.state({"spec": {"runtimeRef": {}}, "status": status}) == state


def test_the_pods_are_counted_as_the_job_says_or_as_trainer_has_counted() -> None:
    counted = {"status": {"jobsStatus": [{"name": "node", "active": 3}]}}
    assert job_object.count({"spec": {"runtimeRef": {}, "trainer": {"numNodes": 2}}, **counted}) == 2
    assert job_object.count({"spec": {"runtimeRef": {}}, **counted}) == 3
    assert job_object.count({"spec": {"runtimeRef": {}}}) == 1


def test_a_check_says_whether_trainer_is_there(kube: Kube) -> None:
    cluster = replace(kube.cluster, job_kind="TrainJob")
    api = Api(cluster)
    found = rules.operator(cluster, api)
    assert (found.level, found.found) == ("pass", "Kubeflow Trainer would take a TrainingRuntime of 3 pods")
    assert [one["kind"] for one in kube.applied] == ["TrainingRuntime"] and not kube.objects, "a dry run makes none"
    for kind in ("TrainJob", "TrainingRuntime"):
        kube.unknown = {kind}
        found = rules.operator(cluster, api)
        assert found.level == "fail" and found.found.endswith("Kubeflow Trainer v2 is not installed there")
    api.close()
