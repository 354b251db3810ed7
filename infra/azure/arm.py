"""Azure's management interface (ARM) over REST, as the account that Pulumi's own provider uses.

Pulumi's provider declares things; this is for what it cannot: a command inside a machine with its output, and a
machine that is stopped for good. azure-core does the HTTP, with retries; azure-identity the tokens.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from azure.core import PipelineClient
from azure.core.credentials import TokenCredential
from azure.core.exceptions import AzureError
from azure.core.pipeline.policies import BearerTokenCredentialPolicy, RetryPolicy
from azure.core.rest import HttpRequest
from azure.identity import AzureCliCredential, CertificateCredential, ClientSecretCredential, ManagedIdentityCredential

from infra.errors import OperationError

ENDPOINT = "https://management.azure.com"
COMPUTE = "2024-11-01"
"""Version of the Compute interface: the one that pulumi-azure-native 3.29 uses."""


class ArmError(OperationError):
    """A request that Azure refused, or that did not reach it."""


def credential() -> TokenCredential:
    """Who asks, chosen by the same variables as in Pulumi's provider; `az login` where there are none."""
    tenant, client = os.environ.get("ARM_TENANT_ID", ""), os.environ.get("ARM_CLIENT_ID", "")
    if tenant and client and (secret := os.environ.get("ARM_CLIENT_SECRET")):
        return ClientSecretCredential(tenant, client, secret)
    if tenant and client and (path := os.environ.get("ARM_CLIENT_CERTIFICATE_PATH")):
        password = os.environ.get("ARM_CLIENT_CERTIFICATE_PASSWORD")
        return CertificateCredential(tenant, client, path, password=password)
    if os.environ.get("ARM_USE_MSI", "").lower() == "true":
        return ManagedIdentityCredential(client_id=client or None)
    if os.environ.get("ARM_USE_OIDC", "").lower() == "true":
        raise ArmError("ARM_USE_OIDC: not supported here; use a client secret, a certificate or az login")
    return AzureCliCredential(process_timeout=60)


class Arm:
    """Requests to Azure's one endpoint."""

    def __init__(
        self,
        *,
        check: Callable[[], None] = lambda: None,
        endpoint: str = ENDPOINT,
        who: TokenCredential | None = None,
        wait: float = 10.0,
    ) -> None:
        """`check` raises when nobody wants the result any more; `wait` is the time between two looks, in seconds."""
        self._check, self._wait = check, wait
        policies = [
            RetryPolicy(retry_total=6),
            BearerTokenCredentialPolicy(who or credential(), f"{ENDPOINT}/.default"),
        ]
        self._client: PipelineClient[Any, Any] = PipelineClient(endpoint, policies=policies)
        self._https = endpoint.startswith("https:")

    def request(
        self, method: str, path: str, *, version: str = COMPUTE, body: object = None, **query: str
    ) -> dict[str, Any]:
        """The answer's JSON; an empty answer is an empty object. Raises ArmError with Azure's own words."""
        request = HttpRequest(method, path, params={"api-version": version, **query}, json=body)
        try:
            # A stand-in for tests has no TLS; Azure's own address always has.
            response = self._client.send_request(request, enforce_https=self._https)
            text = response.text()
        except AzureError as error:
            raise ArmError(f"{method} {path}: {error}") from None
        if response.status_code >= 400:
            raise ArmError(f"{method} {path}: {response.status_code} {_reason(text)}")
        found: dict[str, Any] = json.loads(text) if text.strip() else {}
        return found

    def until(self, what: str, seconds: float, look: Callable[[], bool]) -> None:
        """Look again and again until it is so. Raises ArmError when it is not within `seconds`."""
        deadline = time.monotonic() + seconds
        while not look():
            self._check()
            if time.monotonic() > deadline:
                raise ArmError(f"{what}: not within {seconds:.0f} s")
            time.sleep(self._wait)

    def power(self, machine: str) -> str:
        """A machine's state: running, stopped (still billed), deallocated ...; empty where Azure does not say."""
        view = self.request("GET", f"{machine}/instanceView")
        states = [str(status.get("code", "")).partition("/") for status in view.get("statuses", [])]
        return next((state for kind, _, state in states if kind == "PowerState"), "")

    def deallocate(self, machine: str, seconds: float = 900) -> None:
        """Stop a machine so that it is billed no more, and wait until it is."""
        self.request("POST", f"{machine}/deallocate")
        self.until(f"{machine}: deallocated", seconds, lambda: self.power(machine) == "deallocated")


def _reason(text: str) -> str:
    """Azure's own words in an answer that says no."""
    try:
        error = json.loads(text)["error"]
        return f"{error['code']}: {error['message']}"
    except (ValueError, KeyError, TypeError):
        return " ".join(text.split())[:400]
