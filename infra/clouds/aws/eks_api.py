"""Puts Kubernetes objects into a new EKS cluster, by its API, from the operator's machine.

A dynamic resource of the program: `up` ends with a cluster that takes jobs, and a changed object is applied by the next
`up`. It removes nothing: the objects go with the cluster, and a cluster whose API no longer answers is destroyed all
the same. (Pulumi's Kubernetes provider has to reach the API for that, and is a plugin that every stack would load.)
"""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Any

import pulumi
import yaml
from pulumi.dynamic import CreateResult, DiffResult, Resource, UpdateResult

from infra import training_operator
from infra.clouds import kube_apply
from infra.clouds.aws import eks_token
from infra.clouds.dynamic_provider import PlainProvider
from infra.clouds.kube_client import MANAGER, Client, Object
from infra.state import operation

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def connect(props: dict[str, Any]) -> Client:
    """The cluster that a resource's inputs name."""
    token = functools.partial(eks_token.token, props["cluster"], props["region"])
    return Client(props["endpoint"], props["authority"], token)


def apply(props: dict[str, Any]) -> None:
    """Apply the definition of PyTorchJob and the objects, and wait until what runs is ready. Raises OperationError."""
    definition = yaml.load(training_operator.definition(), Loader=_LOADER)
    everything: list[Object] = [definition, *json.loads(props["objects"])]
    check, hint = operation.CancellationWatch().check, "; is this machine in the network of adminCidr?"
    kube_apply.apply(connect(props), everything, props["cluster"], check, hint=hint)


class ObjectsProvider(PlainProvider):
    """Applies them, and again when they or the cluster have changed."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Apply them; OperationError if the API does not take them, or what runs is not ready in time."""
        apply(props)
        return CreateResult(id_=f"{props['cluster']}/{MANAGER}", outs=props)

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        """Another endpoint is another cluster, and replaces the resource; other objects are applied in place."""
        other = olds["endpoint"] != news.get("endpoint")
        return DiffResult(changes=other or olds["digest"] != news.get("digest"), replaces=["endpoint"] if other else [])

    def update(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        """Apply them all again, as `create` does. An object that is no longer among them stays in the cluster."""
        apply(news)
        return UpdateResult(outs=news)


class Objects(Resource, module="aws", name="Objects"):
    """Kubernetes objects in a cluster."""

    def __init__(self, props: dict[str, pulumi.Input[str]], opts: pulumi.ResourceOptions) -> None:
        """`props`: cluster (EKS's name), region, endpoint, authority, and objects, a list as JSON."""
        digest = pulumi.Output.from_input(props["objects"]).apply(digest_of)
        super().__init__(ObjectsProvider(), "objects", {**props, "digest": digest}, opts)


def digest_of(objects: str) -> str:
    """Of all that is applied."""
    return hashlib.sha256(f"{training_operator.DEFINITION_SHA256} {objects}".encode()).hexdigest()[:16]
