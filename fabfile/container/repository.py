"""The repository of a cluster's images, and the one that its jobs run.

The repository itself says which: the newest that was pushed for the cluster's machines, by its digest. So everybody's
laptop has the same answer, and nothing is to be written down after a push.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from invoke.exceptions import Exit

from fabfile.stacks import pulumi_cli
from infra.inventory import KubeCluster

_PROGRAM = "clouds.aws.ecr"


@dataclass(frozen=True)
class Pushed:
    """An image in a repository."""

    tag: str
    digest: str
    bytes: int
    """As stored, packed."""
    pushed: float
    """When, in seconds since 1970."""


def job_image(cluster: KubeCluster) -> str:
    """What the cluster's jobs run: the image that its inventory names, or by its digest the newest in the repository
    that it names. Exit 2 if that has none."""
    if is_named(cluster.image):
        return cluster.image
    chosen = choose(pushed(cluster), cluster)
    if chosen is None:
        what = f"{cluster.image} has no image of profile {profile(cluster)}"
        raise Exit(f"{cluster.name}: {what}; make one: fab image build, then fab image push", code=2)
    return f"{cluster.image}@{chosen.digest}"


def is_named(image: str) -> bool:
    """Whether this is one image, by its tag or digest, and not the repository of many. A port is no tag."""
    return "@" in image or ":" in image.rpartition("/")[2]


def pushed(cluster: KubeCluster) -> list[Pushed]:
    """What the cluster's repository has, the newest first. Exit 2 if its inventory names none that can be asked."""
    return [Pushed(**row) for row in pulumi_cli.answer(_PROGRAM, "list", address(cluster))]


def login(cluster: KubeCluster) -> str:
    """The repository's login, for the file of logins of docker, podman and buildah; it is a secret."""
    found: dict[str, Any] = pulumi_cli.answer(_PROGRAM, "login", address(cluster))
    return str(found["auth"])


def choose(images: list[Pushed], cluster: KubeCluster) -> Pushed | None:
    """The newest that is for the cluster's machines."""
    return next((image for image in images if image.tag.startswith(f"{profile(cluster)}-")), None)


def profile(cluster: KubeCluster) -> str:
    """The profile that its machines need."""
    return "cuda" if cluster.gpus_per_worker else "native"


def address(cluster: KubeCluster) -> str:
    """The address of the cluster's repository in ECR. Exit 2 if its inventory names none."""
    if is_named(cluster.image):
        why = f"its inventory names the image of its jobs, {cluster.image}, and no repository of ECR"
        raise Exit(f"{cluster.name}: {why}", code=2)
    if cluster.authentication != "eks":
        raise Exit(f"{cluster.name}: image = {cluster.image!r}: has neither tag nor digest: which image is it?", code=2)
    return cluster.image
