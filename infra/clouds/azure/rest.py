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

from azure.core.credentials import TokenCredential
from azure.core.rest import HttpRequest, HttpResponse

from infra.clouds.azure import arm
from infra.clouds.azure.arm import SIGN_IN
from infra.errors import UsageError

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
        self._who, self._retries = who or arm.credential(), retries
        who = self._who
        self._arm = arm.client(endpoint, who, arm.SCOPE, retries)
        self._storage = arm.client(endpoint, who, STORAGE, retries)

    def of(self, subscription: str) -> Rest:
        """The same for another subscription."""
        return Rest(subscription, self.endpoint, self._who, self.wait, self._retries)

    def get(self, path: str, version: str, **query: str) -> dict[str, Any]:
        """One thing; ArmError with Azure's own words when it cannot be had, UsageError without credentials."""
        return arm.parsed(self._send("GET", urljoin(self.endpoint, path), {"api-version": version, **query}))

    def get_if_there(self, path: str, version: str) -> dict[str, Any] | None:
        """One thing, None where there is none."""
        response = self._send("GET", urljoin(self.endpoint, path), {"api-version": version}, gone=True)
        return None if response.status_code == 404 else arm.parsed(response)

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
            answer = arm.parsed(self._send("GET", self._own(link)))

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
            state = arm.parsed(response).get("status", "") if operation else ""
            if state in ("Failed", "Canceled"):
                raise arm.ArmError(f"DELETE {path}: {state}: {arm.reason(response)}")
            if state == "Succeeded" or (not operation and response.status_code != 202):
                return

    def blobs(self, container: str) -> tuple[int, int]:
        """(how many, bytes) of a container by its URL. Versions and deleted ones that can be had back are counted too:
        they are billed."""
        count, total, marker = 0, 0, ""
        while True:
            query = {"restype": "container", "comp": "list", "include": "versions,deleted", "marker": marker}
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
            return arm.send(client, request, self.endpoint, gone=gone)
        except arm.SignInError as error:
            raise UsageError(str(error)) from None
