"""A job as a TrainJob: its manifest in full, the same pods as a PyTorchJob's, and what verbs say of such a cluster.

tests/acceptance/test_kubernetes.py holds it against the published definitions, which are 1.5 MB.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from inventory_values import KUBE_CLUSTERS
from invoke.exceptions import Exit
from kube_cluster import Kube
from kube_examples import CPUS, GPUS, JOB

from fabfile.backends.kubernetes import pod_template, pytorchjob, start, trainjob, view
from fabfile.backends.kubernetes.api import Api
from fabfile.backends.kubernetes.backend import KubernetesBackend
from fabfile.backends.kubernetes.pod_template import PodJob
from fabfile.backends.submission import Begun, Submission
from fabfile.check import kubernetes as rules
from fabfile.job_file import resolve
from infra.inventory import KubeCluster, from_json, to_json

GOLDEN = [Path(__file__).with_name(f"{kind}.yaml") for kind in ("trainingruntime", "trainjob")]
SHOWN = replace(GPUS, job_kind="TrainJob")


def submission(**changes: Any) -> Submission:
    return Submission(job=resolve("smoke", ["train.steps=3"], 3), nodes=2, **changes)


def indexed_job(cluster: KubeCluster, job: PodJob) -> dict[str, Any]:
    runtime, _ = trainjob.rendered(cluster, job)
    (pods,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    found: dict[str, Any] = pods["template"]["spec"]
    return found


def test_the_manifest_is_this_one() -> None:
    assert [yaml.safe_load(file.read_text()) for file in GOLDEN] == list(trainjob.rendered(GPUS, JOB))


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
    assert len(f"{longest}-9999-{trainjob.CONTAINER}-0-1023-abcde") <= 63
    with pytest.raises(Exit, match="at most 40 letters"):
        start.check(SHOWN, submission(begun=Begun(longest + "a", "", 2)))


def test_its_secrets_belong_to_it() -> None:
    _, made = trainjob.rendered(GPUS, JOB)
    made["metadata"]["uid"] = "u"
    secret = pod_template.secret(GPUS, JOB.id, {"WANDB_API_KEY": "k"}, made)
    (belongs,) = secret["metadata"]["ownerReferences"]
    assert belongs == {"apiVersion": trainjob.VERSION, "kind": "TrainJob", "name": "demo-1", "uid": "u"}


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


@pytest.mark.parametrize(
    "ask",
    [
        lambda backend: backend.prepare(submission()),
        lambda backend: backend.jobs(),
        lambda backend: backend.stop("smoke-1", now=True),
        lambda backend: backend.forget("smoke-1"),
        lambda backend: backend.reach(),
    ],
    ids=["prepare", "jobs", "stop", "forget", "reach"],
)
def test_nothing_else_is_done_with_it(ask: Callable[[Any], object], kube: Kube) -> None:
    with KubernetesBackend(replace(kube.cluster, job_kind="TrainJob")) as backend, pytest.raises(Exit) as refused:
        ask(backend)
    said = str(refused.value.message)
    assert refused.value.code == 2 and said.startswith("kind: job_kind = 'TrainJob': `fab train --dry-run` shows such")
    assert "\n" not in said and not kube.applied and not kube.deleted and not kube.execs


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
