"""An API server on loopback that speaks Kubernetes' protocol as far as kube_client does: TLS, tokens, apply.

with served() as api:
    Client(api.url, api.authority, lambda: "token").apply({...})
    api.applied            # what was applied, by its path
"""

from __future__ import annotations

import base64
import datetime
import http.server
import ipaddress
import json
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from http_server import listening


@dataclass
class KubeApi:
    """The server, as a client sees it and as a test changes it."""

    url: str = ""
    authority: str = ""
    """Its certificate, PEM as base64."""
    applied: dict[str, Any] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)
    refusals: list[tuple[int, str]] = field(default_factory=list)
    """Answers to the next requests, status and message, instead of what they ask for."""
    unready: set[str] = field(default_factory=set)
    """Names of objects whose pods never become ready."""

    def status(self, one: dict[str, Any]) -> dict[str, Any]:
        """As the controllers would fill it in."""
        late = one["metadata"]["name"] in self.unready
        numbers = {"DaemonSet": {"numberReady": 0 if late else 2, "desiredNumberScheduled": 2}}
        numbers["Deployment"] = {} if late else {"readyReplicas": 1}
        generation = {"observedGeneration": 1}
        return {**one, "metadata": {**one["metadata"], "generation": 1}, "status": generation | numbers[one["kind"]]}


@contextmanager
def served() -> Iterator[KubeApi]:
    api = KubeApi()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(lambda path, query: self._apply(path, query, json.loads(body)))

        def do_GET(self) -> None:
            self._answer(lambda path, _query: (200, api.status(api.applied[path])))

        def _apply(self, path: str, query: dict[str, str], one: dict[str, Any]) -> tuple[int, Any]:
            assert self.headers["Content-Type"] == "application/apply-patch+yaml", "else it is no server-side apply"
            assert query == {"fieldManager": "trainyard", "force": "true"}
            api.applied[path] = one
            return 200, one

        def _answer(self, of: Any) -> None:
            api.tokens.add(self.headers["Authorization"])
            parts = urllib.parse.urlsplit(self.path)
            if api.refusals:
                code, message = api.refusals.pop(0)
                answer = {"kind": "Status", "message": message}
            else:
                code, answer = of(parts.path, dict(urllib.parse.parse_qsl(parts.query)))
            text = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Nothing: pytest shows what a test needs."""

    pem, key = certificate()
    api.authority = base64.b64encode(pem).decode()
    with listening(Handler, identity=pem + key) as api.url:
        yield api


def certificate() -> tuple[bytes, bytes]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kubernetes")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    own = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return made.public_bytes(serialization.Encoding.PEM), own
