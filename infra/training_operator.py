"""Kubeflow's training operator 1.9.4, which turns a PyTorchJob into pods: the objects that it needs in a cluster.

Rendered here for PyTorchJob alone: the published manifests are a kustomize overlay of six kinds of job, with rights to
match. The definition of PyTorchJob itself (640 kB, generated) is the published file, fetched and held against its hash.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import urllib.request
import zipfile
from typing import Any

from infra.errors import OperationError

VERSION = "1.9.4"
NAMESPACE = "kubeflow"
NAME = "training-operator"
IMAGE = "ghcr.io/kubeflow/training-v1/training-operator:v1-93c5489"
"""The image that the overlay of v1.9.4 names."""
WAITING_IMAGE = "public.ecr.aws/docker/library/alpine:3.22"
"""Of the init container that waits for a job's first pod, where the operator adds one. Its default is on Docker Hub,
which limits anonymous pulls."""
CERTIFICATE = f"{NAME}-webhook-cert"
_LABELS = {"control-plane": "kubeflow-training-operator"}
_WRITES = ["create", "delete", "get", "list", "patch", "update", "watch"]

Object = dict[str, Any]
"""A Kubernetes object as its manifest has it."""


DEFINITION_URL = f"https://proxy.golang.org/github.com/kubeflow/training-operator/@v/v{VERSION}.zip"
"""Go's module of that version, 2.9 MB: the same for ever, and wherever Go's modules are to be had."""
DEFINITION_FILE = f"github.com/kubeflow/training-operator@v{VERSION}/manifests/base/crds/kubeflow.org_pytorchjobs.yaml"
DEFINITION_SHA256 = "8b8a8a719cc94173169290251e817f7ac2bb425c20b6c2fa813397bcf4e932ed"
_SECONDS = 60.0


def definition(url: str = DEFINITION_URL) -> str:
    """The definition of PyTorchJob (YAML, Apache 2.0), fetched. Raises OperationError if it cannot be had, or is
    another file."""
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as response:
            archive = zipfile.ZipFile(io.BytesIO(response.read()))
        content = archive.read(DEFINITION_FILE)
    except (OSError, zipfile.BadZipFile, KeyError, http.client.HTTPException) as error:
        raise OperationError(f"the training operator's definition of PyTorchJob, {url}: {error}") from None
    if (found := hashlib.sha256(content).hexdigest()) != DEFINITION_SHA256:
        raise OperationError(f"{url}: {DEFINITION_FILE} has sha256 {found}, and should have {DEFINITION_SHA256}")
    return content.decode()


def objects(image: str = IMAGE, waiting_image: str = WAITING_IMAGE, machine: str = "") -> list[Object]:
    """Everything but the definition, which comes first, in the order of their creation. `waiting_image`: of the init
    containers; empty: the operator's image has a template for them. `machine`: where the operator is to run; empty:
    anywhere."""
    named = {"name": NAME, "namespace": NAMESPACE, "labels": _LABELS}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": NAME},
            "rules": _rules(),
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        },
        # Empty: the operator fills in the certificate of its webhook, and the webhook's authority below.
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": CERTIFICATE, "namespace": NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": named,
            "spec": {
                "selector": _LABELS,
                "ports": [
                    {"name": "monitoring-port", "port": 8080, "targetPort": 8080},
                    {"name": "webhook-server", "port": 443, "protocol": "TCP", "targetPort": 9443},
                ],
            },
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": named,
            "spec": _deployment(image, waiting_image, machine),
        },
        _webhook(),
    ]


def _rule(group: str, resources: list[str], verbs: list[str]) -> Object:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


def _rules() -> list[Object]:
    """What the published role has, without the other kinds of job and the gang schedulers."""
    return [
        _rule("", ["pods", "services", "events"], _WRITES),
        _rule("", ["secrets"], ["get", "list", "update", "watch"]),
        _rule("autoscaling", ["horizontalpodautoscalers"], _WRITES),
        _rule("kubeflow.org", ["pytorchjobs"], _WRITES),
        _rule("kubeflow.org", ["pytorchjobs/finalizers"], ["update"]),
        _rule("kubeflow.org", ["pytorchjobs/status"], ["get", "patch", "update"]),
        _rule(
            "admissionregistration.k8s.io",
            ["validatingwebhookconfigurations"],
            ["get", "list", "update", "watch"],
        ),
    ]


def _deployment(image: str, waiting_image: str, machine: str) -> Object:
    def probe(path: str, delay: int, period: int) -> Object:
        http = {"path": path, "port": 8081}
        return {"httpGet": http, "initialDelaySeconds": delay, "periodSeconds": period, "timeoutSeconds": 3}

    container = {
        "name": NAME,
        "image": image,
        "command": ["/manager"],
        "args": [
            "--enable-scheme=pytorchjob",
            *([f"--pytorch-init-container-image={waiting_image}"] if waiting_image else []),
        ],
        "ports": [{"containerPort": 8080}, {"containerPort": 9443, "name": "webhook-server"}],
        "env": [
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for name, path in (("MY_POD_NAMESPACE", "metadata.namespace"), ("MY_POD_NAME", "metadata.name"))
        ],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "volumeMounts": [{"mountPath": "/tmp/k8s-webhook-server/serving-certs", "name": "cert", "readOnly": True}],
        "livenessProbe": probe("/healthz", 15, 20),
        "readinessProbe": probe("/readyz", 2, 3),  # the published 10 and 15 make `up` 20 s longer
    }
    pod = {
        "serviceAccountName": NAME,
        "terminationGracePeriodSeconds": 10,
        "containers": [container],
        "volumes": [{"name": "cert", "secret": {"secretName": CERTIFICATE, "defaultMode": 420}}],
        **({"nodeSelector": {"kubernetes.io/hostname": machine}} if machine else {}),
    }
    return {
        "replicas": 1,
        "selector": {"matchLabels": _LABELS},
        "template": {"metadata": {"labels": _LABELS}, "spec": pod},
    }


def _webhook() -> Object:
    """A PyTorchJob that the operator would not understand is refused when it is submitted."""
    service = {"name": NAME, "namespace": NAMESPACE, "path": "/validate-kubeflow-org-v1-pytorchjob"}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "validator.training-operator.kubeflow.org"},
        "webhooks": [
            {
                "name": "validator.pytorchjob.training-operator.kubeflow.org",
                "admissionReviewVersions": ["v1"],
                "clientConfig": {"service": service},
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "rules": [
                    {
                        "apiGroups": ["kubeflow.org"],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": ["pytorchjobs"],
                    }
                ],
            }
        ],
    }
