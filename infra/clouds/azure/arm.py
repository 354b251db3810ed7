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
from urllib.parse import urlsplit

from azure.core import PipelineClient
from azure.core.credentials import TokenCredential
from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.core.pipeline.policies import BearerTokenCredentialPolicy, RetryPolicy
from azure.core.rest import HttpRequest, HttpResponse
from azure.identity import AzureCliCredential, CertificateCredential, ClientSecretCredential, ManagedIdentityCredential

from infra.errors import OperationError

ENDPOINT = "https://management.azure.com"
SIGN_IN = "az login, then: az account set --subscription ...; or ARM_SUBSCRIPTION_ID and a service principal's ARM_*"
SCOPE = "https://management.azure.com/.default"
WAIT = 10.0
"""Seconds between two looks at the same thing."""
COMPUTE = "2024-11-01"
"""Version of the Compute interface: the one that pulumi-azure-native 3.29 uses."""


class ArmError(OperationError):
    """A request that Azure refused, or that did not reach it."""


class SignInError(ArmError):
    """Nobody whom Azure knows asks."""


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


Client = PipelineClient[HttpRequest, HttpResponse]


def client(endpoint: str, who: TokenCredential, scope: str, retries: int = 6) -> Client:
    """HTTP with retries: Azure says how long to wait by Retry-After, on a 429 of its quotas as well as on a 503."""
    policies = [RetryPolicy(retry_total=retries), BearerTokenCredentialPolicy(who, scope)]
    return PipelineClient(endpoint, policies=policies)


def send(client: Client, request: HttpRequest, endpoint: str, *, gone: bool = False) -> HttpResponse:
    """The answer, read to its end; with `gone` a 404 is one too.

    Raises SignInError without credentials, ArmError with Azure's own words for what it refuses.
    """
    what = f"{request.method} {urlsplit(request.url).path}"
    try:
        # A stand-in for tests has no TLS; Azure's own address always has.
        response = client.send_request(request, enforce_https=endpoint.startswith("https:"))
        response.read()
    except ClientAuthenticationError as error:  # also where there is no `az`
        raise SignInError(f"no Azure credentials that work: {_first(error)}; {SIGN_IN}") from None
    except AzureError as error:
        raise ArmError(f"{what}: Azure does not answer: {_first(error)}") from None
    if response.status_code >= 400 and not (gone and response.status_code == 404):
        raise ArmError(f"{what}: {response.status_code} {reason(response)}")
    return response


def parsed(response: HttpResponse) -> dict[str, Any]:
    """The answer's JSON; an empty object for what has none."""
    try:
        found = json.loads(response.text() or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def reason(response: HttpResponse) -> str:
    """Azure's own words in an answer that says no."""
    error = parsed(response).get("error")
    if isinstance(error, dict):
        return f"{error.get('code', '')}: {error.get('message', '')}"[:400]
    return " ".join(response.text().split())[:400]


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:300]


class Arm:
    """Requests to Azure's one endpoint."""

    def __init__(self, *, check: Callable[[], None] = lambda: None) -> None:
        """`check` raises when nobody wants the result any more."""
        self._check = check
        self._client = client(ENDPOINT, credential(), SCOPE)

    def request(
        self, method: str, path: str, *, version: str = COMPUTE, body: object = None, **query: str
    ) -> dict[str, Any]:
        """The answer's JSON; an empty answer is an empty object. Raises ArmError with Azure's own words."""
        request = HttpRequest(method, f"{ENDPOINT}{path}", params={"api-version": version, **query}, json=body)
        return parsed(send(self._client, request, ENDPOINT))

    def until(self, what: str, seconds: float, look: Callable[[], bool]) -> None:
        """Look again and again until it is so. Raises ArmError when it is not within `seconds`."""
        deadline = time.monotonic() + seconds
        while not look():
            self._check()
            if time.monotonic() > deadline:
                raise ArmError(f"{what}: not within {seconds:.0f} s")
            time.sleep(WAIT)

    def power(self, machine: str) -> str:
        """A machine's state: running, stopped (still billed), deallocated ...; empty where Azure does not say."""
        view = self.request("GET", f"{machine}/instanceView")
        states = [str(status.get("code", "")).partition("/") for status in view.get("statuses", [])]
        return next((state for kind, _, state in states if kind == "PowerState"), "")

    def deallocate(self, machine: str, seconds: float = 900) -> None:
        """Stop a machine so that it is billed no more, and wait until it is."""
        self.request("POST", f"{machine}/deallocate")
        self.until(f"{machine}: deallocated", seconds, lambda: self.power(machine) == "deallocated")


def stopped(machine: str) -> str:
    """Stop a machine after a failure, also when the `up` was interrupted; a line that says so, or that it runs on."""
    try:
        Arm().deallocate(machine)
    except OperationError as error:
        return f"and it still runs and costs: {error}\nstop it: az vm deallocate --ids {machine}"
    return "the machine was stopped (deallocated)"
