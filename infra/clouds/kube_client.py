"""Two requests to the API of a Kubernetes cluster: apply an object, and look at one.

Both are plain JSON over TLS with the cluster's own authority, so they need no library, and send each object as it is.
https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANAGER = "trainyard"
"""Field manager of what is applied: Kubernetes keeps apart who has set what."""
SECONDS = 30.0
_GLOBAL = {
    **{"Namespace": "namespaces", "PersistentVolume": "persistentvolumes"},
    **{"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings"},
    "CustomResourceDefinition": "customresourcedefinitions",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}
_NAMESPACED = {
    **{"ServiceAccount": "serviceaccounts", "Secret": "secrets", "Service": "services"},
    **{"Role": "roles", "RoleBinding": "rolebindings"},
    **{"PersistentVolumeClaim": "persistentvolumeclaims", "Deployment": "deployments", "DaemonSet": "daemonsets"},
}
"""Kind -> its name in a path of the API."""

Object = dict[str, Any]


class ApiError(Exception):
    """The API has refused a request, or does not answer. One line."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code
        """HTTP's status; 0: there was no answer."""


@dataclass(frozen=True)
class Client:
    """The API of a cluster."""

    endpoint: str
    authority: str
    """The API server's certificate authority, PEM as base64."""
    token: Callable[[], str] | None = None
    """A token that is valid now; None: the certificate says who we are."""
    certificate: Path | None = None
    """A file with a client's certificate and its private key."""

    def apply(self, one: Object) -> None:
        """Make or change an object, by server-side apply. Raises ApiError."""
        query = urllib.parse.urlencode({"fieldManager": MANAGER, "force": "true"})
        self._ask("PATCH", f"{path_of(one)}?{query}", json.dumps(one).encode())

    def get(self, one: Object) -> Object:
        """The object as the cluster has it. Raises ApiError."""
        return self._ask("GET", path_of(one))

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Object:
        headers = {"Accept": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token()}"
        if body is not None:
            headers["Content-Type"] = "application/apply-patch+yaml"  # JSON is YAML
        request = urllib.request.Request(self.endpoint.rstrip("/") + path, body, headers, method=method)
        trust = ssl.create_default_context(cadata=base64.b64decode(self.authority).decode())
        if self.certificate is not None:
            trust.load_cert_chain(self.certificate)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS, context=trust) as response:
                found: Object = json.load(response)
        except urllib.error.HTTPError as error:
            raise ApiError(_reason(error), error.code) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ApiError(f"{self.endpoint} does not answer: {getattr(error, 'reason', error)}") from None
        return found


def path_of(one: Object) -> str:
    """Where the API has the object. KeyError for a kind that is not in the tables."""
    group, _, version = str(one["apiVersion"]).rpartition("/")
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    kind, named = one["kind"], one["metadata"]
    if kind in _GLOBAL:
        return f"{root}/{_GLOBAL[kind]}/{named['name']}"
    return f"{root}/namespaces/{named['namespace']}/{_NAMESPACED[kind]}/{named['name']}"


def _reason(error: urllib.error.HTTPError) -> str:
    """What the API says in its Status, or HTTP's own words."""
    try:
        return " ".join(str(json.load(error)["message"]).split())[:300]
    except (ValueError, KeyError, TypeError, OSError):
        return f"HTTP {error.code} {error.reason}"
