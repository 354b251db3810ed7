"""Kubernetes on local nodes: a Llama in shards on streamed text, from `up` to its text; stopped, resumed, refused."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boundary
import pytest
import same_losses
import several_jobs
import user_programs
import yaml
from aws_xeon_program import OWN
from jobs_on_kubernetes import (
    NODES,
    TEXT,
    check_quota,
    kubectl,
    kubernetes_of_three,
    metrics,
    other_inventory,
    shared,
    trainer_definitions,
)
from jobs_on_nodes import ENDLESS, GONE_SECONDS, Start, another_stack, listed, parts, process
from polling import until
from project import Project

from infra.clouds.aws import eks_objects, machine_types
from infra.clouds.local.kubernetes import configuration, folder, images
from infra.config import stack_file
from infra.config.settings import load

pytestmark = pytest.mark.timeout(900)
UNKNOWN = "Temporary failure in name resolution"
"""Of a name that no name server that could be asked knows; the same is said on the machines themselves."""


@pytest.fixture(scope="module")
def cluster(make_shared_project: Callable[..., Project]) -> Iterator[Project]:
    with kubernetes_of_three(make_shared_project()) as project:
        yield project


def test_the_cluster_is_what_the_verbs_say(cluster: Project) -> None:
    assert re.search(r"^3 machines of \S+ ready", cluster.fab("wait").stdout, re.MULTILINE)
    checked = cluster.fab("check").stdout
    assert re.search(r"^7 pass, 0 warn, 0 fail", checked, re.MULTILINE), checked
    assert re.search(r"^pass +all-reduce +6 links .* all-reduce of .* values right$", checked, re.MULTILINE), checked
    assert "check-" not in cluster.fab("jobs").stdout, "nothing is left of the job that measured"
    shown = cluster.fab("status").stdout
    assert all(re.search(rf"^{node} +ready", shown, re.MULTILINE) for node in NODES), shown


def test_a_pod_with_all_rights_is_nobody_on_this_machine(cluster: Project) -> None:
    """It becomes its machine's root, as privileged ones, which the cluster refuses, would be. And such a machine has
    more than others: containers, programs that all stacks share, and folders of its own."""
    rights = {"capabilities": {"add": ["ALL"]}, "runAsUser": 0}
    volumes = [{"name": "usr", "hostPath": {"path": "/usr"}}]
    mounts = [{"name": "usr", "mountPath": "/usr"}]
    held = {"image": images.JOB, "imagePullPolicy": "Never", "command": ["/usr/bin/sleep", "600"]}
    container = {**held, "name": "root", "securityContext": rights, "volumeMounts": mounts}
    spec = {"nodeName": "node1", "hostPID": True, "hostNetwork": True, "containers": [container], "volumes": volumes}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "root"}, "spec": spec}
    kubectl(cluster, "apply", "-f", "-", stdin=json.dumps(pod))

    def shell(script: str) -> str:
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid")
        inside = [*boundary.OWN_MOUNTS, f"exec 2>&1; {script}; true"]
        return kubectl(cluster, "exec", "root", "--", "/usr/bin/nsenter", "--target=1", *spaces, "--", *inside)

    top = folder.path(cluster.stack)
    hidden = top / "pki/node2/kubelet.key", top / "pki/ca.key", top / "admin.kubeconfig"
    own = ("/fsx", "/var/lib/containerd", "/var/lib/kubelet", configuration.STATE)
    try:
        kubectl(cluster, "wait", "pod", "root", "--for=condition=Ready", "--timeout=30s")
        assert shell("id -u; hostname").split() == ["0", "node1"]
        boundary.check_all(
            cluster, shell, *hidden, folders=own, read_only=(configuration.PROGRAMS, configuration.IMAGES)
        )
    finally:
        kubectl(cluster, "delete", "pod", "root", "--grace-period=0", "--force")


def looked_up(cluster: Project, name: str) -> str:
    """What the verbs' pod is told of a name: an address, or the words of the C library."""
    program = """
import socket, sys
try:
    print(socket.gethostbyname(sys.argv[1]))
except OSError as error:
    print(error.strerror)
"""
    return kubectl(cluster, "exec", "deploy/trainyard-head", "--", "/usr/bin/python3", "-Ic", program, name).strip()


def test_a_pod_finds_those_on_other_machines_by_name_also_after_the_name_service_has_died(cluster: Project) -> None:
    """By a headless service, as jobs and programs of others do it. The machines know no names of the outside."""
    ports = {"clusterIP": "None", "selector": {"app": "pair"}, "ports": [{"port": 80}]}
    named = {"name": "pair", "labels": {"app": "pair"}}
    wanted: list[dict[str, Any]] = [{"apiVersion": "v1", "kind": "Service", "metadata": named, "spec": ports}]
    for machine in NODES[1:]:
        container = {"name": "pause", "image": images.PAUSE, "imagePullPolicy": "IfNotPresent"}
        spec = {"nodeName": machine, "hostname": f"on-{machine}", "subdomain": "pair", "containers": [container]}
        pod = {"apiVersion": "v1", "kind": "Pod", "spec": spec}
        wanted.append({**pod, "metadata": {**named, "name": f"pair-{machine}"}})
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": wanted})
    kubectl(cluster, "apply", "-f", "-", stdin=text)
    try:
        kubectl(cluster, "wait", "pods", "--selector=app=pair", "--for=condition=Ready", "--timeout=30s")
        shown = "--output=jsonpath={.items[*].status.podIP}"
        first, second = kubectl(cluster, "get", "pods", "--selector=app=pair", shown).split()
        until(lambda: looked_up(cluster, "on-node3.pair") == second, 10, "the pods' names are known")
        assert looked_up(cluster, "on-node2.pair.trainyard.svc.cluster.local") == first
        assert looked_up(cluster, "pair") in (first, second)
        assert looked_up(cluster, "kubernetes.default") == configuration.API_SERVICE
        assert looked_up(cluster, "on-node4.pair") == looked_up(cluster, "example.org") == UNKNOWN
        os.kill(process(cluster, "node1", r"/usr/local/bin/coredns "), signal.SIGKILL)
        until(lambda: looked_up(cluster, "on-node3.pair") == second, 20, "systemd has started it again")
    finally:
        kubectl(cluster, "delete", "--grace-period=1", "-f", "-", stdin=text)


def test_a_dry_run_is_what_would_be_applied_and_touches_nothing(cluster: Project) -> None:
    before = listed(cluster)
    shown = cluster.fab("train", "llama.toml", "--dry-run", "--nodes", "2").stdout
    manifest = shown.partition("\n\n")[0].replace("llama-N", "llama-1")  # it has no number yet
    assert "kind: PyTorchJob" in manifest
    assert "created (server dry run)" in kubectl(cluster, "apply", "--dry-run=server", "-f", "-", stdin=manifest)
    assert listed(cluster) == before and kubectl(cluster, "get", "pytorchjobs", "--output=name") == ""


def test_a_trainjob_is_shown_as_trainers_definitions_want_it(cluster: Project) -> None:
    """Trainer itself is not there (test_kubernetes_trainer.py). The API server has its definitions, with their rules,
    and Kubernetes' own Job."""
    definitions = trainer_definitions()
    other = other_inventory(cluster, images.JOB, "TrainJob")
    refused = cluster.fab("train", "job.toml", "--inventory", other, code=1).stderr
    assert re.search(r"404: TrainJob: .*: Kubeflow Trainer v2 is not installed there", refused), refused
    assert refused.count("\n") == 1
    shown = cluster.fab("train", "job.toml", "--dry-run", "--inventory", other).stdout
    manifest = shown.partition("\n\n")[0].replace("job-N", "job-1")
    runtime, _ = yaml.safe_load_all(manifest)
    (pods,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    indexed = {"parallelism": 3, "completions": 3, **pods["template"]["spec"]}  # as Trainer and JobSet make it
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job-1-node-0"}, "spec": indexed}
    strictly = ("apply", "--server-side", "--validate=strict", "-f", "-")
    files = [f"--filename={file}" for file in definitions]
    kubectl(cluster, "apply", "--server-side", *files)
    try:
        kubectl(cluster, "wait", "--for=condition=Established", *files)
        assert kubectl(cluster, *strictly, stdin=manifest).count("serverside-applied") == 2
        assert "dry run" in kubectl(cluster, *strictly, "--dry-run=server", stdin=json.dumps(job))
        with pytest.raises(AssertionError, match=r"mlPolicy\.numNoodes: field not declared in schema"):
            kubectl(cluster, *strictly, "--dry-run=server", stdin=manifest.replace("numNodes", "numNoodes"))
        with pytest.raises(AssertionError, match=r"metadata\.name must match RFC 1035"):
            kubectl(cluster, *strictly, "--dry-run=server", stdin=manifest.replace("name: job-1", "name: 1-job"))
    finally:
        kubectl(cluster, "delete", *files)


@pytest.mark.parametrize("type_", ["p4d.24xlarge", "p5.48xlarge", "g5.xlarge"])
def test_the_objects_of_aws_eks_are_what_a_real_api_server_takes(cluster: Project, type_: str) -> None:
    """What `up` applies there, and a job on its machines, asked of the API server and of the operator's webhook.
    Nothing of it is made: a dry run passes all that a real request passes, and is not stored."""
    keys = {**stack_file.read("aws-eks"), "publicKey": str(cluster.home / ".ssh/id_ed25519.pub"), **OWN}
    settings = load("aws-eks", {**keys, "instanceType": type_})
    inside = [*eks_objects.objects(settings, "fs-0123456789abcdef0", "fs-0.fsx.us-east-1.amazonaws.com", "abcdefgh")]
    wanted = [*inside, *eks_objects.operator()]
    strictly = ("apply", "--server-side", "--force-conflicts", "--validate=strict", "--dry-run=server", "-f", "-")
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": wanted})
    # This cluster has a volume and a claim of these names, which cannot become others.
    listed = listed.replace(f'"{eks_objects.VOLUME}"', '"aws-fsx"').replace(
        '"namespace": "trainyard"', '"namespace": "default"'
    )
    assert kubectl(cluster, *strictly, stdin=listed).count("(server dry run)") == len(wanted)
    with pytest.raises(AssertionError, match=r"tolerance: field not declared in schema|unknown field .*tolerance"):
        kubectl(cluster, *strictly, stdin=listed.replace('"tolerations"', '"tolerance"'))
    machine = machine_types.of(settings)
    gpus: dict[str, Any] = {"gpus_per_worker": machine.gpus, "gpu_architecture": machine.gpu_architecture}
    other = other_inventory(cluster, "trainyard.local/none:1", **gpus, efa_per_worker=machine.efa_cards, software="")
    shown = cluster.fab("train", "job.toml", "--dry-run", "--inventory", other).stdout
    manifest = shown.partition("\n\n")[0].replace("job-N", "job-1")
    assert f"nvidia.com/gpu: '{machine.gpus}'" in manifest and ("vpc.amazonaws.com/efa" in manifest) == bool(
        machine.efa_cards
    )
    assert kubectl(cluster, *strictly, stdin=manifest).count("(server dry run)") == 1
    with pytest.raises(AssertionError, match=r"pytorchReplicaSpecs|denied|Invalid"):
        kubectl(cluster, *strictly, stdin=manifest.replace("Master:", "Muster:"))


def test_a_llama_in_shards_on_streamed_text_from_its_file_to_its_text(
    cluster: Project, start: Start, tmp_path: Path
) -> None:
    job = start(step=0, file="llama.toml")
    assert job.ends(180) == 0, job.text()
    assert f"{job.id}: 3 ranks on 3 machines, as the PyTorchJob {job.id}" in job.text()
    assert ": fsdp, " in job.text()
    for node in NODES:
        assert re.search(rf"\[{node} rank=\d\] on {node}: ", job.text())
    state = job.state()
    assert (state["state"], state["exit_code"], state["attempt"]) == ("SUCCEEDED", 0, 1)
    assert sorted(state["nodes"]) == list(NODES)
    print(f"submit to first step: {metrics(cluster, job.id)[0]['time'] - state['created']:.1f} s")
    until(lambda: parts(cluster, job.id) == [], GONE_SECONDS, "nothing of the job is left")
    cluster.fab("fetch", job.id, "--to", str(tmp_path / "fetched"))
    assert (tmp_path / "fetched/checkpoints/step-000012/manifest.json").exists()
    cluster.fab("fetch", job.id, "--weights", "--to", str(tmp_path / "weights"))
    assert same_numbers(tmp_path / "weights", tmp_path / "fetched/best")
    text = cluster.fab("sample", job.id, "--prompt", "the ", "--tokens", "20", "--seed", "7").stdout
    assert text.startswith("the ") and len(text) > 20


def same_numbers(weights: Path, checkpoint: Path) -> bool:
    """Whether files in Hugging Face's layout have the tensors of a checkpoint in shards, by whatever names, and with
    the rows of a head in whatever order."""
    load = pytest.importorskip("safetensors.torch").load_file
    reader = pytest.importorskip("training.checkpoint.reader")
    there = [tensor for file in weights.rglob("*.safetensors") for tensor in load(file).values()]
    shards = reader.Part(checkpoint, "model")
    return len(there) > 10 and sorted(map(content, there)) == sorted(content(shards[name]) for name in shards)


def content(tensor: Any) -> bytes:
    found: bytes = tensor.flatten().sort().values.numpy().tobytes()
    return found


@pytest.mark.acceptance
@pytest.mark.soak
def test_a_stopped_job_goes_on_to_the_same_losses(cluster: Project, start: Start) -> None:
    options = ["train.min_lr=0.0006", "--nodes", "2"]
    job = start(ENDLESS, *options)
    job.fab.kill()
    same_losses.check_resumed(start, job, options, cluster.fab("stop", job.id).stdout, metrics)


def test_what_cannot_start_says_why_in_one_line(cluster: Project, start: Start) -> None:
    """Machines that another job has, an image that is not there, a quota that is too small."""
    first = start(ENDLESS)
    busy = cluster.fab("train", "job.toml", code=1).stderr
    assert busy.startswith(f"0 of 3 machines free, 3 wanted; busy with {first.id} (3)"), busy
    cluster.fab("stop", first.id, "--now")
    other = other_inventory(cluster, "trainyard.local/none:1")
    # The head's pod would have that image, too, so it is the job's pods alone that get it: by the API.
    manifest = cluster.fab("train", "job.toml", "--dry-run", "--inventory", other).stdout
    assert "image: trainyard.local/none:1" in manifest
    check_quota(cluster, start)


@pytest.mark.acceptance
@pytest.mark.soak
def test_programs_that_know_nothing_of_us_run_unchanged(cluster: Project, tmp_path: Path) -> None:
    work = user_programs.written(tmp_path / "work")
    user_programs.check_mpi(cluster, work)
    user_programs.check_train(cluster, work, lambda job: parts(cluster, job), tmp_path / "fetched")


@pytest.mark.acceptance
@pytest.mark.soak
def test_a_sweep_runs_its_jobs_side_by_side_and_compares_them(cluster: Project, tmp_path: Path) -> None:
    jobs = several_jobs.check_sweep(cluster, shared(cluster), tmp_path / "report.html")
    until(lambda: not any(parts(cluster, job) for job in jobs), GONE_SECONDS, "nothing of the jobs is left")


@pytest.mark.faults
@pytest.mark.soak
def test_with_a_stack_without_kubernetes_it_trains_one_model(cluster: Project, tmp_path: Path) -> None:
    with another_stack(cluster) as second:
        cluster.fab("prepare", "job.toml", *TEXT, "--yes", "--stack", second)
        job = several_jobs.check_together(cluster, second, shared(cluster), tmp_path)
        until(lambda: not parts(cluster, job), GONE_SECONDS, "nothing of the job is left")
