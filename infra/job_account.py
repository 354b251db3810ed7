"""The service account of the jobs' pods, and its rights on Kubernetes' API: what a job needs to outlive a machine.

The pod of a machine that died stays Terminating until somebody deletes it by force, and only then is another one made
in its place; the job's own pods do that. One of a TrainJob they mark as failed before. They see pods of their own
namespace and nothing else.
"""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]
"""A Kubernetes object as its manifest has it."""

RULES = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "delete"]},
    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
]
_GROUP = "rbac.authorization.k8s.io"


def objects(namespace: str, name: str) -> list[Object]:
    """The account `name` and its rights, in the order of their creation; the namespace has to be there."""
    named = {"name": name, "namespace": namespace}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named},
        {"apiVersion": f"{_GROUP}/v1", "kind": "Role", "metadata": named, "rules": RULES},
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "RoleBinding",
            "metadata": named,
            "roleRef": {"apiGroup": _GROUP, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", **named}],
        },
    ]
