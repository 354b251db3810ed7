"""A client of Azure's management API (ARM) for what Pulumi's provider cannot do: list, read and delete resources that
are in no state, and run a command inside a machine.

azure-core does the HTTP: request ids, retries (429 and 503 with Retry-After), tokens, pages and long-running
operations. This module turns every failure into a one-line error and gives every wait a limit.
"""

from __future__ import annotations

import copy
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

    def __init__(self, message: str, status: int = 0) -> None:
        """`status`: of Azure's HTTP response; 0 without one."""
        super().__init__(message)
        self.status = status


class _OneHost(policies.SansIOHTTPPolicy[HttpRequest, HttpResponse]):
    """Refuse requests to another host: responses contain links, and the token must not be sent anywhere else."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def on_request(self, request: PipelineRequest[HttpRequest]) -> None:
        if urlsplit(request.http_request.url).netloc != urlsplit(self._endpoint).netloc:
            raise ArmError(f"{request.http_request.url}: not a link of {self._endpoint}")


class Arm:
    """The management API for one caller and one subscription.

    Requests raise ArmError with Azure's message for a status of 400 or more, UsageError without credentials.
    """

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
        self._endpoint, self._wait = endpoint or ENDPOINT, wait
        self._tls = self._endpoint.startswith("https:")  # a test server on loopback has none
        caller = who or credential()

        def client(scope: str, *first: _OneHost) -> PipelineClient[HttpRequest, HttpResponse]:
            token = policies.BearerTokenCredentialPolicy(caller, scope)
            steps = [*first, policies.RequestIdPolicy(), policies.RetryPolicy(retry_total=retries), token]
            return PipelineClient(self._endpoint, policies=steps, connection_timeout=CONNECT_S, read_timeout=READ_S)

        self._arm, self._storage = client(SCOPE, _OneHost(self._endpoint)), client(STORAGE_SCOPE)

    def of(self, subscription: str) -> Arm:
        """The same client for another subscription."""
        other = copy.copy(self)
        other.subscription = f"/subscriptions/{subscription}"
        return other

    def get(self, path: str, version: str, **query: str) -> dict[str, Any]:
        """One resource."""
        return _json(self._send(self._request("GET", path, version, **query)).http_response)

    def get_if_there(self, path: str, version: str) -> dict[str, Any] | None:
        """One resource, or None if it does not exist."""
        try:
            return self.get(path, version)
        except ArmError as error:
            if error.status != 404:
                raise
        return None

    def every(self, path: str, version: str, **query: str) -> list[dict[str, Any]]:
        """All items of a listing, over all its pages. Compute lists the marketplace's images without pages."""
        first = self._request("GET", path, version, **query)

        def page(link: str | None) -> Any:
            return _json(self._send(HttpRequest("GET", link) if link else first).http_response)

        def items(found: Any) -> tuple[str | None, Iterator[dict[str, Any]]]:
            in_pages = isinstance(found, dict)
            return (found.get("nextLink"), iter(found.get("value", []))) if in_pages else (None, iter(found))

        return list(ItemPaged(page, items))

    def put(self, path: str, version: str, body: object) -> dict[str, Any]:
        """Begin to create a resource. Returns Azure's first response; does not wait."""
        return _json(self._send(self._request("PUT", path, version, body)).http_response)

    def post(self, path: str, version: str) -> None:
        """Begin an action on a resource; does not wait."""
        self._send(self._request("POST", path, version))

    def delete(self, path: str, version: str) -> None:
        """Delete a resource and wait until it is gone, at most DELETING_S. A missing resource is no error."""
        what, header, by_location = f"DELETE {path}", "Azure-AsyncOperation", True
        operation = base_polling.OperationResourcePolling[HttpRequest, HttpResponse](header)
        ways = [operation, base_polling.LocationPolling(), base_polling.StatusCheckPolling()]
        polling: Any = base_polling.LROBasePolling(timeout=self._wait, lro_algorithms=ways, enforce_https=self._tls)
        try:
            started = self._send(self._request("DELETE", path, version))
            by_location = header not in started.http_response.headers
            with _one_line(what):
                poller = LROPoller(self._arm, started, lambda _: None, polling)
                poller.wait(DELETING_S)
            if not poller.done():
                raise ArmError(f"{what}: not done within {DELETING_S:.0f} s")
        except ArmError as error:
            if error.status != 404 or not by_location:  # a Location URL may vanish with the resource
                raise

    def blobs(self, container: str) -> tuple[int, int]:
        """(number of blobs, bytes) of a container by its URL. Counts old versions and soft-deleted blobs too, as they
        are billed."""
        query = {"restype": "container", "comp": "list", "include": "versions,deleted"}

        def page(marker: str | None) -> ElementTree.Element:
            request = HttpRequest("GET", container, params={**query, "marker": marker or ""}, headers=STORAGE_HEADERS)
            return ElementTree.fromstring(self._send(request, self._storage).http_response.text())

        def sizes(root: ElementTree.Element) -> tuple[str | None, Iterator[int]]:
            return root.findtext("NextMarker") or None, (int(size.text or 0) for size in root.iter("Content-Length"))

        found: list[int] = list(ItemPaged(page, sizes))
        return len(found), sum(found)

    def _request(self, method: str, path: str, version: str, body: object = None, **query: str) -> HttpRequest:
        return HttpRequest(method, urljoin(self._endpoint, path), params={"api-version": version, **query}, json=body)

    def _send(self, request: HttpRequest, client: Any = None) -> Any:
        """Send a request, by default to ARM. Returns azure-core's pipeline response, fully read."""
        options = {"enforce_https": self._tls, "_return_pipeline_response": True}
        answer: Any
        with _one_line(f"{request.method} {urlsplit(request.url).path}"):
            answer = (client or self._arm).send_request(request, **options)
            answer.http_response.read()
            answer.http_response.raise_for_status()
        return answer


@contextmanager
def _one_line(what: str) -> Iterator[None]:
    """Turn azure-core's exceptions into one-line errors that begin with `what`."""
    try:
        yield
    except ClientAuthenticationError as error:  # also raised when `az` is not installed
        raise UsageError(f"No valid Azure credentials: {_first_line(error)}; {SIGN_IN}") from None
    except HttpResponseError as error:
        if error.response is None:
            raise ArmError(f"{what}: {_first_line(error)}") from None
        failed = _json(error.response).get("status")  # of a long-running operation
        state = f"{failed}:" if failed else error.status_code
        raise ArmError(f"{what}: {state} {_reason(error.response)}", error.status_code or 0) from None
    except AzureError as error:
        raise ArmError(f"{what}: Azure does not answer: {_first_line(error)}") from None


def _json(response: Any) -> dict[str, Any]:
    """The response's JSON, a list in one case (see `every`); {} if its body is empty or not JSON."""
    try:
        found: dict[str, Any] = json.loads(response.text() or "{}")
    except ValueError:
        return {}
    return found


def _reason(response: Any) -> str:
    """Azure's error message, at most 400 characters."""
    error = _json(response).get("error")
    text = f"{error.get('code', '')}: {error.get('message', '')}" if isinstance(error, dict) else response.text()
    return " ".join(text.split())[:400]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:300]
