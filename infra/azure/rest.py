"""ARM as the audit and the account's pre-flight use it: listings page by page, deletions that are waited for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from typing import Any
from urllib.parse import urljoin, urlsplit
from xml.etree import ElementTree

from azure.core import PipelineClient
from azure.core.credentials import TokenCredential
from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.core.pipeline.policies import BearerTokenCredentialPolicy, RetryPolicy
from azure.core.rest import HttpRequest, HttpResponse

from infra.azure import arm
from infra.errors import UsageError

TAG = "trainyard-stack"
SIGN_IN = "az login, then: az account set --subscription ...; or ARM_SUBSCRIPTION_ID and a service principal's ARM_*"
STORAGE = "https://storage.azure.com/.default"
AZ_S = 60.0
"""How long Azure's command line may take to say which subscription it works on."""
DELETING_S = 3600.0
"""How long a deletion may take: a gallery version with replicas is the slowest."""


def subscription() -> str:
    """The subscription that Pulumi's provider would use. UsageError where there is none."""
    given = os.environ.get("ARM_SUBSCRIPTION_ID") or os.environ.get("AZURE_SUBSCRIPTION_ID")
    if given:
        return given
    if shutil.which("az"):
        asked = ["az", "account", "show", "--query", "id", "--output", "tsv"]
        try:
            done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=AZ_S)
        except subprocess.TimeoutExpired:
            raise UsageError(f"no Azure subscription: az does not answer within {AZ_S:.0f} s; {SIGN_IN}") from None
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.strip()
    raise UsageError(f"no Azure subscription: {SIGN_IN}")


class Rest:
    """One subscription. `wait` is slept through between two looks, in seconds, where Azure does not say how long."""

    def __init__(
        self,
        subscription: str,
        endpoint: str = arm.ENDPOINT,
        who: TokenCredential | None = None,
        wait: float = 10.0,
        retries: int = 6,
    ) -> None:
        self.subscription = f"/subscriptions/{subscription}"
        self.endpoint = endpoint
        self.wait = wait
        self._retries = retries
        self._who = who or arm.credential()
        self._arm = self._client(f"{arm.ENDPOINT}/.default")
        self._storage = self._client(STORAGE)

    def _client(self, scope: str) -> PipelineClient[HttpRequest, HttpResponse]:
        # Azure says how long to wait by Retry-After: a 429 of its quotas as well as a 503.
        policies = [RetryPolicy(retry_total=self._retries), BearerTokenCredentialPolicy(self._who, scope)]
        return PipelineClient(self.endpoint, policies=policies)

    def get(self, path: str, version: str, **query: str) -> dict[str, Any]:
        """One thing; ArmError with Azure's own words when it cannot be had, UsageError without credentials."""
        return _json(self._send("GET", urljoin(self.endpoint, path), {"api-version": version, **query}))

    def get_if_there(self, path: str, version: str) -> dict[str, Any] | None:
        """One thing, None where there is none."""
        response = self._send("GET", urljoin(self.endpoint, path), {"api-version": version}, gone=True)
        return None if response.status_code == 404 else _json(response)

    def plain(self, path: str, version: str) -> list[dict[str, Any]]:
        """A listing that is a bare list, without pages: Compute's of its marketplace images."""
        found = self._send("GET", urljoin(self.endpoint, path), {"api-version": version}, gone=True)
        return list(json.loads(found.text())) if found.status_code == 200 else []

    def every(self, path: str, version: str, **query: str) -> list[dict[str, Any]]:
        """All items of a listing, over all its pages."""
        found: list[dict[str, Any]] = []
        answer = self.get(path, version, **query)
        while True:
            found += answer.get("value", [])
            if not (link := answer.get("nextLink")):
                return found
            answer = _json(self._send("GET", self._own(link)))

    def delete(self, path: str, version: str, **query: str) -> None:
        """Delete, and wait until it is done. What is gone already is well."""
        response = self._send("DELETE", urljoin(self.endpoint, path), {"api-version": version, **query}, gone=True)
        if response.status_code in (201, 202):
            self._until_done(path, response)

    def _until_done(self, path: str, response: HttpResponse) -> None:
        """Follow Azure-AsyncOperation, whose body says the state, or Location, which is a 202 until it is done."""
        operation, location = response.headers.get("Azure-AsyncOperation"), response.headers.get("Location")
        end = time.monotonic() + DELETING_S
        while operation or location:
            if time.monotonic() > end:
                raise arm.ArmError(f"DELETE {path}: not done within {DELETING_S:.0f} s")
            time.sleep(float(response.headers.get("Retry-After") or self.wait))
            response = self._send("GET", self._own(str(operation or location)), gone=not operation)
            state = _json(response).get("status", "") if operation else ""
            if state in ("Failed", "Canceled"):
                raise arm.ArmError(f"DELETE {path}: {state}: {_reason(_json(response))}")
            if state == "Succeeded" or (not operation and response.status_code != 202):
                return

    def blobs(self, container: str) -> tuple[int, int]:
        """(how many, bytes) of a container by its URL; versions are counted too."""
        count, total, marker = 0, 0, ""
        while True:
            query = {"restype": "container", "comp": "list", "include": "versions", "marker": marker}
            root = ElementTree.fromstring(self._send("GET", container, query, storage=True).text())
            for entry in root.iter("Content-Length"):
                count, total = count + 1, total + int(entry.text or 0)
            marker = root.findtext("NextMarker") or ""
            if not marker:
                return count, total

    def _own(self, link: str) -> str:
        """A link of Azure's answer. The token goes to the same host and no other."""
        if urlsplit(link).netloc != urlsplit(self.endpoint).netloc:
            raise arm.ArmError(f"{link}: not a link of {self.endpoint}")
        return link

    def _send(
        self, method: str, url: str, query: dict[str, str] | None = None, *, gone: bool = False, storage: bool = False
    ) -> HttpResponse:
        headers = {"x-ms-version": "2021-12-02"} if storage else {}
        request = HttpRequest(method, url, params=query, headers=headers)
        client = self._storage if storage else self._arm
        try:
            response = client.send_request(request, enforce_https=self.endpoint.startswith("https:"))
            response.read()
        except ClientAuthenticationError as error:
            raise UsageError(f"no Azure credentials that work: {_first(error)}; {SIGN_IN}") from None
        except AzureError as error:
            raise arm.ArmError(f"Azure does not answer: {_first(error)}") from None
        if response.status_code >= 400 and not (gone and response.status_code == 404):
            raise arm.ArmError(f"{method} {urlsplit(url).path}: {response.status_code} {_reason(_json(response))}")
        return response


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:300]


def _json(response: HttpResponse) -> dict[str, Any]:
    try:
        found = json.loads(response.text() or "{}")
    except ValueError:
        return {"error": {"message": " ".join(response.text().split())[:300]}}
    return found if isinstance(found, dict) else {}


def _reason(answer: dict[str, Any]) -> str:
    error = answer.get("error") or {}
    return f"{error.get('code', '')} {error.get('message', '')}".strip()[:300]
