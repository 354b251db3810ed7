"""A client of Azure's management API (ARM) for what Pulumi's provider cannot do: list, read and delete resources that
are in no state, and run a command inside a machine.

azure-core does the HTTP: request ids, retries (429 and 503 with Retry-After), tokens, pages and long-running
operations. This module turns every failure into a one-line error and gives every wait a limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urljoin, urlsplit
from xml.etree import ElementTree

from azure.core import PipelineClient
from azure.core.credentials import TokenCredential
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.core.paging import ItemPaged
from azure.core.pipeline import PipelineRequest, policies
from azure.core.polling import LROPoller, base_polling
from azure.core.rest import HttpRequest, HttpResponse

from infra.clouds.azure.credentials import SIGN_IN, credential
from infra.errors import OperationError, UsageError

ENDPOINT = "https://management.azure.com"
SCOPE, STORAGE_SCOPE = "https://management.azure.com/.default", "https://storage.azure.com/.default"
STORAGE_HEADERS = {"x-ms-version": "2021-12-02"}
COMPUTE = "2024-11-01"
"""Version of the Compute API: the one that pulumi-azure-native 3.29 uses."""
CONNECT_S, READ_S = 30, 120
"""Timeouts in seconds: to connect, and for each read."""
DELETING_S = 3600.0
"""Timeout of a deletion in seconds. A gallery version with replicas is the slowest."""


class ArmError(OperationError):
    """Azure refused a request, or could not be reached."""


class _OneHost(policies.SansIOHTTPPolicy[HttpRequest, HttpResponse]):
    """Refuse requests to another host: responses contain links, and the token must not be sent anywhere else."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def on_request(self, request: PipelineRequest[HttpRequest]) -> None:
        if urlsplit(request.http_request.url).netloc != urlsplit(self._endpoint).netloc:
            raise ArmError(f"{request.http_request.url}: not a link of {self._endpoint}")


class Arm:
    """The management API for one caller and one subscription."""

    def __init__(
        self,
        subscription: str = "",
        *,
        endpoint: str = "",
        who: TokenCredential | None = None,
        wait: float = 10.0,
        retries: int = 6,
    ) -> None:
        """`wait`: seconds between polls of a long-running operation when Azure gives no Retry-After."""
        self.subscription = f"/subscriptions/{subscription}"
        self._endpoint, self._who = endpoint or ENDPOINT, who or credential()
        self._wait, self._retries = wait, retries
        self._arm = self._client(SCOPE, _OneHost(self._endpoint))
        self._storage = self._client(STORAGE_SCOPE)

    def _client(self, scope: str, *first: _OneHost) -> PipelineClient[HttpRequest, HttpResponse]:
        token = policies.BearerTokenCredentialPolicy(self._who, scope)
        steps = [*first, policies.RequestIdPolicy(), policies.RetryPolicy(retry_total=self._retries), token]
        return PipelineClient(self._endpoint, policies=steps, connection_timeout=CONNECT_S, read_timeout=READ_S)

    def of(self, subscription: str) -> Arm:
        """The same client for another subscription."""
        return Arm(subscription, endpoint=self._endpoint, who=self._who, wait=self._wait, retries=self._retries)

    def get(self, path: str, version: str, **query: str) -> dict[str, Any]:
        """One resource. Raises ArmError with Azure's message, UsageError without credentials."""
        return _parsed(self._send(self._request("GET", path, version, **query)))

    def get_if_there(self, path: str, version: str) -> dict[str, Any] | None:
        """One resource, or None if it does not exist."""
        response = self._send(self._request("GET", path, version), missing_ok=True)
        return None if response.status_code == 404 else _parsed(response)

    def plain(self, path: str, version: str) -> list[dict[str, Any]]:
        """A listing that is a bare JSON list without pages (Compute's marketplace images). Empty on a 404."""
        found = self._send(self._request("GET", path, version), missing_ok=True)
        return list(json.loads(found.text())) if found.status_code == 200 else []

    def every(self, path: str, version: str, **query: str) -> list[dict[str, Any]]:
        """All items of a listing, over all its pages."""
        first = self._request("GET", path, version, **query)

        def next_page(link: str | None) -> dict[str, Any]:
            return _parsed(self._send(HttpRequest("GET", link) if link else first))

        return list(ItemPaged(next_page, lambda page: (page.get("nextLink") or None, iter(page.get("value", [])))))

    def put(self, path: str, version: str, body: object) -> dict[str, Any]:
        """Begin to create a resource. Returns Azure's first response; does not wait."""
        return _parsed(self._send(self._request("PUT", path, version, body)))

    def post(self, path: str, version: str) -> None:
        """Begin an action on a resource; does not wait."""
        self._send(self._request("POST", path, version))

    def delete(self, path: str, version: str) -> None:
        """Delete a resource and wait until it is gone, at most DELETING_S. A missing resource is no error."""
        request, what = self._request("DELETE", path, version), f"DELETE {path}"
        started = self._run(request, missing_ok=True)
        if started.http_response.status_code not in (201, 202):
            return
        operation = base_polling.OperationResourcePolling[HttpRequest, HttpResponse]("Azure-AsyncOperation")
        ways = [operation, base_polling.LocationPolling(), base_polling.StatusCheckPolling()]
        polling: Any = base_polling.LROBasePolling(timeout=self._wait, lro_algorithms=ways, enforce_https=self._tls)
        with _one_line(what):
            poller = LROPoller(self._arm, started, lambda _: None, polling)
            try:
                poller.wait(DELETING_S)
            except HttpResponseError as error:
                by_location = "Azure-AsyncOperation" not in started.http_response.headers
                if not (by_location and error.status_code == 404):  # a Location URL may vanish with the resource
                    raise
            if not poller.done():
                raise ArmError(f"{what}: not done within {DELETING_S:.0f} s")

    def blobs(self, container: str) -> tuple[int, int]:
        """(number of blobs, bytes) of a container by its URL. Counts old versions and soft-deleted blobs too, as they
        are billed."""
        count, total, marker = 0, 0, ""
        while True:
            query = {"restype": "container", "comp": "list", "include": "versions,deleted", "marker": marker}
            request = HttpRequest("GET", container, params=query, headers=STORAGE_HEADERS)
            root = ElementTree.fromstring(self._send(request, storage=True).text())
            for entry in root.iter("Content-Length"):
                count, total = count + 1, total + int(entry.text or 0)
            marker = root.findtext("NextMarker") or ""
            if not marker:
                return count, total

    @property
    def _tls(self) -> bool:
        """Azure needs TLS; a test server on loopback does not."""
        return self._endpoint.startswith("https:")

    def _request(self, method: str, path: str, version: str, body: object = None, **query: str) -> HttpRequest:
        return HttpRequest(method, urljoin(self._endpoint, path), params={"api-version": version, **query}, json=body)

    def _send(self, request: HttpRequest, *, missing_ok: bool = False, storage: bool = False) -> HttpResponse:
        response: HttpResponse = self._run(request, missing_ok=missing_ok, storage=storage).http_response
        return response

    def _run(self, request: HttpRequest, *, missing_ok: bool = False, storage: bool = False) -> Any:
        """Send a request and return azure-core's pipeline response, fully read. `missing_ok`: return a 404 as well.

        Raises ArmError for any other status of 400 or more, UsageError without credentials.
        """
        client = self._storage if storage else self._arm
        what = f"{request.method} {urlsplit(request.url).path}"
        with _one_line(what):
            answer: Any = client.send_request(request, enforce_https=self._tls, _return_pipeline_response=True)
            answer.http_response.read()
        status = answer.http_response.status_code
        if status >= 400 and not (missing_ok and status == 404):
            raise ArmError(f"{what}: {status} {_reason(answer.http_response)}")
        return answer


@contextmanager
def _one_line(what: str) -> Iterator[None]:
    """Turn azure-core's exceptions into one-line errors that begin with `what`."""
    try:
        yield
    except ClientAuthenticationError as error:  # also raised when `az` is not installed
        raise UsageError(f"no Azure credentials that work: {_first_line(error)}; {SIGN_IN}") from None
    except HttpResponseError as error:
        if error.response is None:
            raise ArmError(f"{what}: {_first_line(error)}") from None
        state = _parsed(error.response).get("status") or error.status_code
        raise ArmError(f"{what}: {state}: {_reason(error.response)}") from None
    except AzureError as error:
        raise ArmError(f"{what}: Azure does not answer: {_first_line(error)}") from None


def _parsed(response: Any) -> dict[str, Any]:
    """The response's JSON object; {} if the body is empty or anything else."""
    try:
        found = json.loads(response.text() or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _reason(response: Any) -> str:
    """Azure's error message, at most 400 characters."""
    error = _parsed(response).get("error")
    if isinstance(error, dict):
        return f"{error.get('code', '')}: {error.get('message', '')}"[:400]
    return " ".join(response.text().split())[:400]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:300]
