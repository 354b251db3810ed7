"""What a new local cluster needs inside: the name service's rights, the jobs' namespace, account and volume, and the
training operator."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pulumi
import yaml
from pulumi.dynamic import CreateResult, DiffResult, Resource, UpdateResult

from infra import job_account, training_operator
from infra.clouds import kube_apply
from infra.clouds.dynamic_provider import PlainProvider
from infra.clouds.kube_client import Client, Object
from infra.clouds.local.kubernetes import configuration, folder, images, programs
from infra.clouds.naming import node
from infra.state import operation

ACCOUNT = "trainer"
CLAIM = "fsx"
_SIZE = "1Ti"
"""Kubernetes wants one; the folder has what the disk has."""
_POLL = 0.5
_RIGHTS = "rbac.authorization.k8s.io"


def objects() -> list[Object]:
    """In the order of their creation."""
    volume = f"trainyard-{CLAIM}"
    return [
        *_name_service(),
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": folder.NAMESPACE}},
        *job_account.objects(folder.NAMESPACE, ACCOUNT),
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                "capacity": {"storage": _SIZE},
                **{"accessModes": ["ReadWriteMany"], "storageClassName": "", "persistentVolumeReclaimPolicy": "Retain"},
                "claimRef": {"namespace": folder.NAMESPACE, "name": CLAIM},
                "hostPath": {"path": folder.SHARED, "type": "Directory"},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM, "namespace": folder.NAMESPACE},
            "spec": {
                **{"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": volume},
                "resources": {"requests": {"storage": _SIZE}},
            },
        },
        *training_operator.objects(image=images.OPERATOR, waiting_image="", machine=node(0)),
    ]


def _name_service() -> list[Object]:
    """What CoreDNS may read; it waits for it, so it comes first."""
    named = {"name": configuration.NAME_SERVICE}
    return [
        {
            **{"apiVersion": f"{_RIGHTS}/v1", "kind": "ClusterRole", "metadata": named},
            "rules": [
                {"apiGroups": [""], "resources": ["namespaces", "services"], "verbs": ["list", "watch"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            ],
        },
        {
            **{"apiVersion": f"{_RIGHTS}/v1", "kind": "ClusterRoleBinding", "metadata": named},
            "roleRef": {"apiGroup": _RIGHTS, "kind": "ClusterRole", **named},
            "subjects": [{"apiGroup": _RIGHTS, "kind": "User", **named}],
        },
    ]


def connect(stack: str, endpoint: str) -> Client:
    """The API of a stack's cluster."""
    top = folder.path(stack)
    config = json.loads(folder.kubeconfig(stack).read_text())
    authority = config["clusters"][0]["cluster"]["certificate-authority-data"]
    return Client(endpoint, authority, certificate=top / "admin.pem")


def apply(props: dict[str, Any]) -> None:
    """Apply the definition of PyTorchJob and the objects, and wait until the operator is ready. OperationError."""
    definition = yaml.load(programs.definition(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    everything = [definition, *json.loads(props["objects"])]
    client = connect(props["stack"], props["endpoint"])
    kube_apply.apply(client, everything, props["stack"], operation.CancellationWatch().check, poll=_POLL)


class ObjectsProvider(PlainProvider):
    """Applies them, and again when they have changed. They go with the cluster."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Apply them; OperationError if the API does not take them, or the operator is not ready in time."""
        apply(props)
        return CreateResult(id_=f"{props['stack']}-objects", outs=props)

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        """Another endpoint is another cluster, and replaces the resource; other objects are applied in place."""
        other = olds["endpoint"] != news["endpoint"]
        return DiffResult(changes=other or olds["digest"] != news["digest"], replaces=["endpoint"] if other else [])

    def update(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        """Apply them all again, as `create` does. An object that is no longer among them stays in the cluster."""
        apply(news)
        return UpdateResult(outs=news)


class Objects(Resource, module="local", name="Objects"):
    """Kubernetes objects in a stack's cluster."""

    def __init__(self, *, stack: str, endpoint: str, opts: pulumi.ResourceOptions) -> None:
        text = json.dumps(objects())
        digest = hashlib.sha256(f"{training_operator.DEFINITION_SHA256} {text}".encode()).hexdigest()[:16]
        inputs = {"stack": stack, "endpoint": endpoint, "objects": text, "digest": digest}
        super().__init__(ObjectsProvider(), "objects", inputs, opts)
