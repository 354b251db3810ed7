"""A job as a PyTorchJob, and the head pod: in detail, and held against the training operator's own schema."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import yaml
from invoke.exceptions import Exit
from kube_examples import CPUS, GPUS, JOB

from fabfile.backends.kubernetes import pod_template, pods, start, view
from fabfile.backends.kubernetes.backend import KubernetesBackend
from fabfile.backends.kubernetes.pytorchjob import rendered
from fabfile.backends.submission import Begun, Submission
from fabfile.job_file import resolve
from fabfile.remote.node_program import digest
from infra import training_operator
from infra.errors import OperationError
from infra.inventory import KubeCluster, from_object, to_object
from node.checked_program import words
from node.job.spec import job_nodes


def pod_of(job: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["pytorchReplicaSpecs"][kind]["template"]["spec"]
    return found


def test_a_job_with_gpus_has_a_pod_on_each_machine_with_all_of_it() -> None:
    job = rendered(GPUS, JOB)
    assert job["metadata"] == {
        "name": "demo-1",
        "namespace": "trainyard",
        "labels": {"trainyard.dev/stack": "llama", "trainyard.dev/job": "demo-1"},
    }
    assert job["spec"]["nprocPerNode"] == "1", "a text: its default is the number of a pod's cores"
    assert job["spec"]["runPolicy"] == {"cleanPodPolicy": "Running", "ttlSecondsAfterFinished": 604800}
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {kind: (each["replicas"], each["restartPolicy"]) for kind, each in replicas.items()} == {
        "Master": (1, "ExitCode"),
        "Worker": (1, "ExitCode"),
    }
    for kind, each in replicas.items():
        assert each["template"]["metadata"]["labels"] == job["metadata"]["labels"]
        pod = pod_of(job, kind)
        (container,) = pod["containers"]
        assert container["name"] == "pytorch" and container["image"] == GPUS.image
        assert container["command"] == ["/usr/bin/python3", "-I", *words(digest()), JOB.program, "pod", JOB.run_dir]
        limits = {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "4", "hugepages-2Mi": "5120Mi"}
        assert container["resources"]["limits"] == limits
        assert container["resources"]["requests"] == {"cpu": "100m", "memory": "256Mi", **limits}
        assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
        fields = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in container["env"][:4]}
        assert fields == {
            "TRAINYARD_POD": "metadata.name",
            "TRAINYARD_POD_IP": "status.podIP",
            "TRAINYARD_MACHINE": "spec.nodeName",
            "TRAINYARD_HOST_IP": "status.hostIP",
        }
        assert pod["serviceAccountName"] == "trainer" and pod["terminationGracePeriodSeconds"] == 45
        assert {"key": "nvidia.com/gpu", "operator": "Exists"} in pod["tolerations"]
        assert [each["tolerationSeconds"] for each in pod["tolerations"] if "tolerationSeconds" in each] == [10, 10]
        (rule,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert rule["topologyKey"] == "kubernetes.io/hostname"
        assert rule["labelSelector"]["matchExpressions"] == [{"key": "trainyard.dev/job", "operator": "Exists"}]
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        assert mounts == {"/fsx": "shared", "/data": "shared", "/dev/shm": "shm"}
        assert container["volumeMounts"][1]["subPath"] == "data", "a folder of the same volume"
        assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in pod["volumes"]
    secrets = [pod_of(job, kind)["containers"][0].get("envFrom") for kind in ("Master", "Worker")]
    assert secrets == [[{"secretRef": {"name": "demo-1", "optional": True}}], None], "rank 0 alone has a tracker's key"


def test_a_job_without_gpus_takes_its_software_from_the_machine() -> None:
    job = rendered(CPUS, replace(JOB, nodes=1))
    assert list(job["spec"]["pytorchReplicaSpecs"]) == ["Master"], "one pod has no workers"
    pod = pod_of(job, "Master")
    (container,) = pod["containers"]
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "256Mi"}}
    assert "securityContext" not in container and "serviceAccountName" not in pod
    software = [each for each in container["volumeMounts"] if each.get("readOnly")]
    assert [each["mountPath"] for each in software] == ["/usr", "/opt/trainyard"]
    paths = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each}
    assert paths == {each["name"]: each["mountPath"] for each in software}


def test_the_head_has_no_gpu_no_rights_and_a_label_of_what_it_is_made_of() -> None:
    one = pods.head(GPUS)
    pod = one["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False and pod["serviceAccountName"] == "trainer"
    assert "limits" not in pod["containers"][0]["resources"]
    assert pod["containers"][0]["env"] == [{"name": "HOME", "value": "/fsx/.trainyard/home"}]
    labels = one["spec"]["template"]["metadata"]["labels"]
    assert labels == one["metadata"]["labels"] and "trainyard.dev/job" not in labels, "else no job could be beside it"
    assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
    other = pods.head(replace(GPUS, image="repo/train@sha256:4567"))
    assert other["metadata"]["labels"]["trainyard.dev/spec"] != labels["trainyard.dev/spec"]
    assert other["spec"]["selector"] == one["spec"]["selector"], "which Kubernetes never changes"


def test_secrets_belong_to_the_job() -> None:
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "demo-1", "uid": "u"}}
    secret = pod_template.owned(pod_template.secret(GPUS, "demo-1", {"WANDB_API_KEY": "k\u00e9y"}), owner)
    assert secret["data"] == {"WANDB_API_KEY": "a8OpeQ=="}
    (belongs,) = secret["metadata"]["ownerReferences"]
    assert belongs == {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "demo-1", "uid": "u"}


@pytest.fixture(scope="module")
def schema() -> jsonschema.protocols.Validator:
    """Of a PyTorchJob, as its definition has it, with no unknown keys allowed where it lists them."""
    try:
        definition = yaml.load(training_operator.definition(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except OperationError as error:
        pytest.skip(f"the operator's definition cannot be fetched here: {error}")
    (version,) = definition["spec"]["versions"]
    found: dict[str, Any] = closed(version["schema"]["openAPIV3Schema"])
    found["properties"]["metadata"] = {"type": "object"}  # the API server's own, which the definition leaves out
    validator = jsonschema.validators.validator_for(found)
    validator.check_schema(found)
    return validator(found)


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema as the API server applies it with strict validation: keys that are not listed are refused."""
    made = {
        key: closed(value) if key in ("items", "additionalProperties") and isinstance(value, dict) else value
        for key, value in schema.items()
    }
    if "properties" in schema:
        made["properties"] = {name: closed(value) for name, value in schema["properties"].items()}
        made.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    return made


@pytest.mark.parametrize("cluster", [GPUS, CPUS], ids=["gpus", "cpus"])
@pytest.mark.parametrize("nodes", [1, 3])
def test_the_operators_schema_takes_it(
    schema: jsonschema.protocols.Validator, cluster: KubeCluster, nodes: int
) -> None:
    job = rendered(cluster, replace(JOB, nodes=nodes))
    schema.validate(job)
    pod_of(job, "Master")["tolerations"].append({"Key": "x"})
    with pytest.raises(jsonschema.ValidationError, match="'Key' was unexpected"):
        schema.validate(job)
    with pytest.raises(jsonschema.ValidationError, match="1 is not of type"):
        schema.validate({**job, "spec": {**job["spec"], "nprocPerNode": 1}})


def test_the_view_is_what_the_head_can_read() -> None:
    seen = view.of(GPUS)
    assert from_object(to_object(seen)) == seen
    assert [node.name for node in seen.nodes] == ["head"] and seen.job_node_usd == 22.0
    first, second = job_nodes(seen)
    assert (first.slots, first.gpus, first.cores_per_slot, first.efa_cards) == (8, 8, 6, 4)
    assert second.gpu_architecture == "sm_80" and view.of(CPUS).queue is not None
    assert [node.slots for node in job_nodes(view.of(CPUS))] == [1, 1, 1]


def submission(**changes: Any) -> Submission:
    job = resolve("smoke", ["train.steps=3"], 3)
    return Submission(job=job, nodes=2, **changes)


def test_a_dry_run_prints_the_manifest_and_the_ranks_environment_without_a_connection() -> None:
    with KubernetesBackend(GPUS) as backend:
        text = backend.plan(submission())
    manifest, _, rest = text.partition("\n\n")
    job = yaml.safe_load(manifest)
    assert job["kind"] == "PyTorchJob" and job["metadata"]["name"] == "smoke-N"
    command = pod_of(job, "Worker")["containers"][0]["command"]
    assert (
        command[2:5] == words(digest())
        and command[5].startswith("/fsx/.trainyard/code/")
        and command[-1] == "/fsx/runs/smoke-N"
    )
    for line in ("FI_PROVIDER=efa", "MASTER_ADDR=$MASTER_ADDR", "WORLD_SIZE=16", "training.train", "steps = 3"):
        assert line in rest, line


@pytest.mark.parametrize(
    ("cluster", "changes", "why"),
    [
        (GPUS, {"launcher": "mpirun"}, "--launcher mpirun: Kubernetes starts the jobs of this cluster: leave it out"),
        (replace(GPUS, image="repo/train"), {}, "llama: image = 'repo/train': has neither tag nor digest"),
        (replace(GPUS, image="host:5000/train"), {}, "has neither tag nor digest"),
        (GPUS, {"begun": Begun("My_Job-1", "", 2)}, "My_Job-1: the name of a job on Kubernetes must be at most 50"),
        (GPUS, {"begun": Begun("a" * 51, "", 2)}, "the name of a job on Kubernetes must be"),
    ],
)
def test_what_kubernetes_cannot_run_is_refused_in_one_line(cluster: KubeCluster, changes: Any, why: str) -> None:
    with pytest.raises(Exit) as refused:
        start.shown(cluster, view.of(cluster), submission(**changes))
    assert refused.value.code == 2 and why in str(refused.value.message) and "\n" not in str(refused.value.message)


def test_a_cluster_without_a_shared_volume_is_refused() -> None:
    for lacks in ({"shared_dir": ""}, {"shared_claim": ""}):
        with pytest.raises(Exit, match="jobs on Kubernetes need shared_dir and shared_claim") as refused:
            KubernetesBackend(replace(GPUS, **lacks))  # type: ignore[arg-type]
        assert refused.value.code == 2
