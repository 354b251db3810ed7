"""Jobs on local nodes with Kubernetes: a small one to start, and what this machine sees of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import c4_form
import pytest
from jobs_on_nodes import JOB, Job, Start
from on_host import Traces, members
from polling import until
from project import Project

from infra.clouds.local import cgroup
from infra.clouds.local.kubernetes import folder, images, objects, programs
from infra.inventory import JobKind, KubeCluster, to_json

NODES = ("node1", "node2", "node3")
AGAIN_SECONDS = 60.0
"""From a pod's loss to the next step; without load it is 10 to 15."""
MACHINE_SECONDS = 120.0
"""The same for a machine; without load 30 to 55."""
TEXT = ["data.source=fabfile/verbs/*.py", "data.train_vocab=300", "data.val_fraction=0.2"]
TRAINER, TRAINER_VERSION = "github.com/kubeflow/trainer/v2", "v2.2.0"
TRAINER_SUM = "h1:whChZckEtycLo1UKH/M0hiNaCUozbLvf9JrgmMv+TAg="
LLAMA = """
[data]
path = "/fsx/c4-tokens"
source = "/fsx/c4/en"
stream = true
train_vocab = 300
[model]
architecture = "llama"
n_layer = 2
n_head = 2
n_kv_head = 1
n_embd = 32
intermediate_size = 64
block_size = 32
[train]
steps = 12
global_batch_tokens = 768
micro_batch = 4
precision = "fp32"
parallel = "fsdp"
eval_every = 6
eval_windows = 12
timeout = 30
[checkpoint]
every = 5
[run]
name = "llama"
"""
"""A Llama in shards on text in C4's form that is read while it trains."""


def why_not() -> str:
    """Why there can be no Kubernetes here; empty if there can."""
    if programs.are_there():
        return ""
    return (
        "Kubernetes is not built on this machine: `fab up` of a stack with scheduler kubernetes does it, in 12 minutes"
    )


@contextmanager
def kubernetes_of_three(project: Project) -> Iterator[Project]:
    """Up and ready, with text and tokens on the shared volume; nothing is left of it afterwards."""
    if reason := why_not():
        pytest.skip(reason)
    project.configure(nodes=3, scheduler="kubernetes", memoryMb=3072)
    project.fab("up", "--yes", timeout=600)
    project.fab("wait")
    c4_form.write(shared(project) / "c4")
    (project.root / "llama.toml").write_text(LLAMA)
    (project.root / "job.toml").write_text(JOB.replace('path = "data"', 'path = "/fsx/verbs"'))
    missing = project.fab("train", "job.toml", code=2)
    assert re.search(r"head: .*/fsx/verbs", missing.stderr), missing.stderr
    project.fab("prepare", "job.toml", *TEXT, "--yes")
    project.fab("prepare", "llama.toml", "--yes")
    yield project
    project.fab("destroy", "--yes")
    Traces(project).check_nothing_is_left()


def shared(project: Project) -> Path:
    """The shared volume, as this machine sees it."""
    return folder.path(project.stack) / "fsx"


def run_dir(project: Project, job: str) -> Path:
    return shared(project) / "runs" / job


def state(project: Project, job: str) -> dict[str, Any]:
    """A job's record, also while the verbs' pod is on a machine that has just died."""
    found: dict[str, Any] = json.loads((run_dir(project, job) / "state.json").read_text())
    return found


def metrics(project: Project, job: str) -> list[dict[str, Any]]:
    """A job's lines about its steps."""
    file = run_dir(project, job) / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def kubectl(project: Project, *words: str, stdin: str | None = None) -> str:
    """What kubectl prints."""
    environment = {**os.environ, "KUBECONFIG": str(folder.kubeconfig(project.stack))}
    program = programs.folder() / "kubectl"
    done = subprocess.run(
        ["kubectl", *words],
        executable=program,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def machine_of(project: Project, pod: str) -> str:
    """The node that a pod is on."""
    return kubectl(project, "get", "pod", pod, "--output=jsonpath={.spec.nodeName}")


def kill_machine(project: Project, name: str) -> None:
    """As if somebody had pulled its plug."""
    group = cgroup.unified(project.stack, name)
    cgroup.kill(group / "keeper", timeout=5.0)
    cgroup.kill(group, timeout=10.0)


def trains_again(project: Project, job: Job, attempt: int, seconds: float) -> None:
    """Wait until a step of this attempt is done; prints how long that took."""
    began = time.time()

    def done() -> bool:
        steps = metrics(project, job.id)  # none for a moment, if the attempt begins anew
        return state(project, job.id)["attempt"] >= attempt and bool(steps) and steps[-1]["time"] > began + 2

    until(done, seconds, f"{job.id} trains in attempt {attempt}")
    print(f"training again after {time.time() - began:.1f} s")


def kill_pod(project: Project, pod: str) -> None:
    """Kill all that a pod runs, as the kernel does for lack of memory: the operator makes it again."""
    for pid in members(project.stack, machine_of(project, pod)):
        if "/launch pod " in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode():
            os.kill(pid, signal.SIGKILL)


def check_quota(project: Project, start: Start) -> Job:
    """A job that a quota keeps from its pods says so in one line, and is stopped; returns it."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}}
    kubectl(project, "apply", "-f", "-", stdin=json.dumps(quota))
    try:
        job = start(step=0)
        until(lambda: "exceeded quota: few" in str(job.state()["reason"]), 30, "the quota is said")
        assert job.state()["state"] == "PENDING" and "\n" not in job.state()["reason"]
        assert "stopped before it started" in project.fab("stop", job.id, "--now").stdout
    finally:
        kubectl(project, "delete", "resourcequota", "few")
    assert run_dir(project, job.id).exists()
    return job


def trainer_definitions() -> list[str]:
    """Kubeflow Trainer's definitions of TrainJob and TrainingRuntime, 1.5 MB, from its Go module."""
    argv = ["go", "mod", "download", "-json", f"{TRAINER}@{TRAINER_VERSION}"]
    if shutil.which(argv[0]) is None:
        pytest.skip("there is no `go` on PATH, which fetches Trainer's definitions")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"Trainer's definitions cannot be fetched here: {done.stdout} {done.stderr}")
    found = json.loads(done.stdout)
    assert found["Sum"] == TRAINER_SUM
    kinds = ("trainjobs", "trainingruntimes")
    return [f"{found['Dir']}/manifests/base/crds/trainer.kubeflow.org_{kind}.yaml" for kind in kinds]


def other_inventory(project: Project, image: str, job_kind: JobKind = "PyTorchJob", **other: Any) -> str:
    """A file with the stack's inventory, but for the image, the kind of job and these fields of a KubeCluster."""
    cluster = KubeCluster(
        name=project.stack,
        kubeconfig=str(folder.kubeconfig(project.stack)),
        namespace=folder.NAMESPACE,
        service_account=objects.ACCOUNT,
        image=image,
        job_kind=job_kind,
        workers=len(NODES),
        gpus_per_worker=0,
        shared_dir=folder.SHARED,
        shared_claim=objects.CLAIM,
        software=",".join(images.SOFTWARE),
    )
    file = project.root / "other.json"
    file.write_text(to_json(replace(cluster, **other)))
    return str(file)
