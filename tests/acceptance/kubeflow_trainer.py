"""Kubeflow Trainer v2, with JobSet, in a local cluster: it is not among what `up` installs, so whoever has it names it.

TRAINYARD_TRAINER is a folder with the manifests (*.yaml, JobSet's first by name) and the container images that these
name (*.tar, as `docker save` writes them).
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from jobs_on_kubernetes import NODES, kubectl, other_inventory, shared
from jobs_on_nodes import process
from polling import until
from project import Project

from infra.clouds.local.kubernetes import images

FOLDER = "TRAINYARD_TRAINER"


def folder() -> Path:
    """Where it is. Skips without it."""
    if not os.environ.get(FOLDER):
        pytest.skip(f"{FOLDER} is not set: a folder with Kubeflow Trainer's and JobSet's manifests and images")
    return Path(os.environ[FOLDER])


def with_trainer(project: Project) -> Project:
    """The project's cluster as one whose jobs are TrainJobs, once Trainer runs there: on the first machine, which no
    test kills, as no pod is made without it."""
    for archive in sorted(folder().glob("*.tar")):
        _import(project, archive)
    deployments = []
    for file in sorted(folder().glob("*.yaml")):
        everything = [one for one in yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader) if one]
        for one in everything:
            if one["kind"] == "Deployment":
                one["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": NODES[0]}
                deployments.append((one["metadata"]["namespace"], one["metadata"]["name"]))
        manifest = {"apiVersion": "v1", "kind": "List", "items": everything}
        kubectl(project, "apply", "--server-side", "-f", "-", stdin=json.dumps(manifest))
    for space, name in deployments:
        ready = ["--namespace", space, "get", "deployment", name, "--output=jsonpath={.status.readyReplicas}"]
        until(lambda ready=ready: kubectl(project, *ready) == "1", 120, f"{name} is ready")  # type: ignore[misc]
    ours = copy.copy(project)
    ours.options = ("--inventory", other_inventory(project, images.JOB, "TrainJob"))
    return ours


def mend(project: Project) -> None:
    """Make the machines again that were lost, by the stack's own verbs, which take no inventory file."""
    stack = copy.copy(project)
    stack.options = ()
    stack.fab("up", "--yes", timeout=300)
    stack.fab("wait")


def _import(project: Project, archive: Path) -> None:
    """Have every node know an image: there is no registry."""
    copied = shared(project) / archive.name
    shutil.copyfile(archive, copied)
    for node in NODES:
        inside = ["nsenter", "--all", f"--target={process(project, node, '/usr/bin/containerd ')}"]
        subprocess.run([*inside, "ctr", "--namespace=k8s.io", "images", "import", f"/fsx/{archive.name}"], check=True)
    copied.unlink()
