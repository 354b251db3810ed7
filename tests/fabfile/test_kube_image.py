"""Which image pods get where the cluster names a repository: jobs the newest, the head pod the one that it has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from invoke.exceptions import Exit
from kube_cluster import Kube, served

from fabfile import job_file
from fabfile.backends.kubernetes import pods, view
from fabfile.backends.kubernetes.api import Api
from fabfile.backends.kubernetes.backend import KubernetesBackend
from fabfile.backends.kubernetes.head_pod import HeadPods
from fabfile.backends.submission import Submission
from fabfile.check import kubernetes as check
from fabfile.container import repository
from fabfile.container.repository import Pushed
from infra.inventory import KubeCluster

REPOSITORY = "123456789012.dkr.ecr.us-east-1.amazonaws.com/trainyard-llama-images"
OLD, NEW = (f"sha256:{digit * 64}" for digit in "12")


class Registry:
    """What a cluster's repository has, and how often it was asked."""

    def __init__(self) -> None:
        self.images: list[Pushed] = []
        self.asked = 0

    def push(self, digest: str) -> None:
        self.images.insert(0, Pushed(f"native-00000000-{digest[-8:]}", digest, 5_000_000_000, 0.0))

    def pushed(self, _cluster: KubeCluster) -> list[Pushed]:
        self.asked += 1
        return self.images


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    made = Registry()
    monkeypatch.setattr(repository, "pushed", made.pushed)
    return made


@pytest.fixture
def kube(tmp_path: Path, registry: Registry) -> Iterator[Kube]:
    with served(tmp_path) as server:
        server.cluster = replace(server.cluster, image=REPOSITORY)
        yield server


@pytest.fixture
def api(kube: Kube) -> Iterator[Api]:
    made = Api(kube.cluster)
    yield made
    made.close()


def of_head(kube: Kube) -> str:
    """The image of the Deployment of the head pod."""
    (container,) = kube.objects[("Deployment", pods.HEAD)]["spec"]["template"]["spec"]["containers"]
    return str(container["image"])


def reach(kube: Kube, api: Api) -> None:
    with HeadPods(api, kube.cluster, view.of(kube.cluster)) as head:
        assert head.run("true", timeout=20)["head"].ok


def test_the_head_pod_is_made_with_the_newest_and_a_push_does_not_end_it(
    kube: Kube, api: Api, registry: Registry
) -> None:
    registry.push(OLD)
    reach(kube, api)
    assert of_head(kube) == f"{REPOSITORY}@{OLD}"
    applied, asked = len(kube.applied), registry.asked
    registry.push(NEW)
    reach(kube, api)
    assert of_head(kube) == f"{REPOSITORY}@{OLD}" and len(kube.applied) == applied
    assert registry.asked == asked, "the verbs that only read do not wait for AWS"


def test_a_head_pod_with_an_image_of_another_repository_is_made_anew(kube: Kube, api: Api, registry: Registry) -> None:
    registry.push(NEW)
    kube.cluster = replace(kube.cluster, image="elsewhere.example.org/train:1")
    reach(kube, api)
    kube.cluster = replace(kube.cluster, image=REPOSITORY)
    reach(kube, api)
    assert of_head(kube) == f"{REPOSITORY}@{NEW}"


def images(manifest: dict[str, Any]) -> set[str]:
    return {
        container["image"]
        for replica in manifest["spec"]["pytorchReplicaSpecs"].values()
        for container in replica["template"]["spec"]["containers"]
    }


def test_a_job_takes_the_newest_by_its_digest(kube: Kube, registry: Registry) -> None:
    registry.push(OLD)
    registry.push(NEW)
    submission = Submission(job=job_file.resolve("smoke", [], ranks=2), nodes=2)
    with KubernetesBackend(kube.cluster) as backend:
        manifest = yaml.safe_load(backend.plan(submission).partition("\n\n")[0])
    assert images(manifest) == {f"{REPOSITORY}@{NEW}"}


def test_without_an_image_nothing_starts(kube: Kube, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    submission = Submission(job=job_file.resolve("smoke", [], ranks=2), nodes=2)
    monkeypatch.setattr(repository, "address", lambda _cluster: REPOSITORY)
    with KubernetesBackend(kube.cluster) as backend, pytest.raises(Exit, match="has no image of profile native") as no:
        backend.prepare(submission)
    assert no.value.code == 2 and kube.applied == []
    verdict = check.image(kube.cluster, api)
    assert (verdict.level, verdict.mend) == ("fail", "fab image push") and kube.applied == []


def test_a_check_says_if_jobs_take_another_image_than_the_one_tried(
    kube: Kube, api: Api, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_STARTS", "echo 2.13.0")
    registry.push(OLD)
    verdict = check.image(kube.cluster, api)
    assert verdict.level == "pass" and verdict.found.startswith(f"{REPOSITORY}@{OLD}: pod"), verdict.found
    registry.push(NEW)
    verdict = check.image(kube.cluster, api)
    assert verdict.level == "warn" and f"jobs take {REPOSITORY}@{NEW}" in verdict.found
    assert f"delete deployment {pods.HEAD}" in verdict.mend
