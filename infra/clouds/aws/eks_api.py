"""Puts Kubernetes objects into a new EKS cluster, by its API, from the operator's machine.

A dynamic resource of the program: `up` ends with a cluster that takes jobs, and a changed object is applied by the next
`up`. It removes nothing: the objects go with the cluster, and a cluster whose API no longer answers is destroyed all
the same. (Pulumi's Kubernetes provider has to reach the API for that, and is a plugin that every stack would load.)
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable
from typing import Any

import pulumi
import yaml
from pulumi.dynamic import CreateResult, DiffResult, Resource, UpdateResult

from infra import training_operator
from infra.clouds.aws import eks_token
from infra.clouds.aws.eks_client import MANAGER, ApiError, Client, Object
from infra.clouds.dynamic_provider import PlainProvider
from infra.errors import OperationError, say
from infra.state import operation

LETS_IN = 300.0
"""Seconds until the API must take what it is given: an access entry counts after a minute or so."""
READY = 600.0
"""Seconds until all that runs must be ready: images are pulled, and the operator makes its certificate."""
POLL = 5.0
_LATER = (0, 401, 403, 404, 409, 429, 500, 502, 503, 504)
"""Answers of an API that is not ready yet, or does not know a definition that was applied just now; 0: none."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def connect(props: dict[str, Any]) -> Client:
    """The cluster that a resource's inputs name."""
    token = functools.partial(eks_token.token, props["cluster"], props["region"])
    return Client(props["endpoint"], props["authority"], token)


def apply(props: dict[str, Any]) -> None:
    """Apply the definition of PyTorchJob and the objects, and wait until what runs is ready. Raises OperationError."""
    definition = yaml.load(training_operator.definition(), Loader=_LOADER)
    everything: list[Object] = [definition, *json.loads(props["objects"])]
    client, check = connect(props), operation.CancellationWatch().check
    until = time.monotonic() + LETS_IN
    for one in everything:
        _patiently(client, one, until, check)
    say(f"applied {len(everything)} objects to {props['cluster']}")
    _await(client, [one for one in everything if one["kind"] in ("DaemonSet", "Deployment")], check)


def _patiently(client: Client, one: Object, until: float, check: Callable[[], None]) -> None:
    """Apply an object; again and again until the time `until` while the API is not ready for it."""
    while True:
        check()
        try:
            client.apply(one)
            return
        except ApiError as error:
            if error.code not in _LATER or time.monotonic() > until:
                hint = "" if error.code else "; is this machine in the network of adminCidr?"
                raise OperationError(f"{one['kind']} {one['metadata']['name']}: {error}{hint}") from None
        time.sleep(POLL)


def _await(client: Client, running: list[Object], check: Callable[[], None]) -> None:
    """Wait until each has its pods ready. Raises OperationError, naming those that have not."""
    until = time.monotonic() + READY
    while late := [text for one in running if (text := _lacks(client, one))]:
        check()
        if time.monotonic() > until:
            raise OperationError(f"not ready after {READY:.0f} s: {'; '.join(late)}")
        time.sleep(POLL)


def _lacks(client: Client, one: Object) -> str:
    """What it lacks, with the command that shows why; empty when it is ready."""
    kind, name, namespace = one["kind"], one["metadata"]["name"], one["metadata"]["namespace"]
    try:
        found = client.get(one)
    except ApiError as error:
        return f"{kind} {name}: {error}"
    status = found.get("status", {})
    if kind == "DaemonSet":
        ready, wanted = status.get("numberReady", 0), status.get("desiredNumberScheduled", 0)
    else:
        ready, wanted = status.get("readyReplicas", 0), found["spec"].get("replicas", 1)
    seen = status.get("observedGeneration") == found["metadata"].get("generation")
    if seen and ready >= wanted > 0:
        return ""
    return f"{kind} {name}: {ready} of {wanted} pods ready (kubectl -n {namespace} describe {kind.lower()} {name})"


class ObjectsProvider(PlainProvider):
    """Applies them, and again when they or the cluster have changed."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        apply(props)
        return CreateResult(id_=f"{props['cluster']}/{MANAGER}", outs=props)

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        other = olds["endpoint"] != news.get("endpoint")
        return DiffResult(changes=other or olds["digest"] != news.get("digest"), replaces=["endpoint"] if other else [])

    def update(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
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
