"""A stand-in for Azure's management interface (ARM), as much of it as the audit and the pre-flight ask.

Written from Microsoft's documentation of the REST API (answers of Resources, Compute, Storage; nextLink paging; 429
with Retry-After; deletions by 202 with Azure-AsyncOperation, or with Location for resource groups): there is no
server of Azure's to be had. It has never been compared with a live subscription.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from azure.core.credentials import AccessToken
from azure_judge import refused_request
from http_server import listening

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
ROOT = f"/subscriptions/{SUBSCRIPTION}"
UNLISTED = ("Microsoft.Authorization", "Microsoft.Consumption")
"""What is no resource of a group's, as its listing goes."""
PAGE = 3
"""Items of a listing's page."""


class Who:
    """A credential whose token the stand-in asks for."""

    def get_token(self, *scopes: str, **_more: Any) -> AccessToken:
        return AccessToken("storage" if "storage" in scopes[0] else "management", int(time.time()) + 3600)


class Cloud:
    """What is there, by id in small letters; and what was asked for."""

    def __init__(self) -> None:
        self.things: dict[str, dict[str, Any]] = {}
        self.lists: dict[str, list[dict[str, Any]]] = {}
        """Answers to other listings, by their path."""
        self.blobs: dict[str, int] = {}
        """Sizes of the blobs of the one container, by name."""
        self.deleted: dict[str, int] = {}
        """Sizes of those that were deleted and can be had back: listed for who asks for them."""
        self.busy = 0
        """How many of the next requests get a 429."""
        self.refuses: set[str] = set()
        """Ids that Azure says it could not delete, once it had begun."""
        self.forbids: set[str] = set()
        """Ends of paths that nobody may look at."""
        self.asked: list[str] = []
        self.operations: dict[str, tuple[str, int]] = {}
        """A deletion under way -> (id, looks until it is done)."""

    def add(self, path: str, stack: str | None = None, **more: Any) -> str:
        """A resource, or a group (`resourceGroups/name`); its id. With a stack it has that tag."""
        identifier = f"{ROOT}/{path}"
        parts = path.split("/providers/")[-1].split("/")
        kind = "group" if path.count("/") == 1 else f"{parts[0]}/{'/'.join(parts[1::2])}"
        tags = {"tags": {"trainyard-stack": stack}} if stack else {}
        self.things[identifier.lower()] = {
            "id": identifier,
            "name": parts[-1],
            "type": kind,
            "location": "eastus",
            **tags,
            **more,
        }
        return identifier

    def answer(self, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        if any(path.lower().endswith(end) for end in self.forbids):
            return 403, {"error": {"code": "AuthorizationFailed", "message": "you may not"}}
        if path.lower() in (f"{ROOT}/resourcegroups", f"{ROOT}/resources"):
            groups = path.endswith("groups")
            stack = query["$filter"][0].rpartition("'")[0].rpartition("'")[2]
            tagged = [entry for entry in self.things.values() if entry.get("tags", {}).get("trainyard-stack") == stack]
            return 200, [entry for entry in tagged if (entry["type"] == "group") == groups]
        if path.endswith("/resources"):
            inside = path.removesuffix("/resources").lower() + "/providers/"
            inside_it = [entry for name, entry in self.things.items() if name.startswith(inside)]
            return 200, [entry for entry in inside_it if not entry["type"].startswith(UNLISTED)]
        if path.lower().endswith("/roleassignments"):
            # Those above, at and below; here all of them. The filter by scope is the caller's.
            return 200, [entry for name, entry in self.things.items() if "/roleassignments/" in name]
        if path in self.lists:
            return 200, self.lists[path]
        if path.lower() in self.things:
            return 200, self.things[path.lower()]
        return 404, {"error": {"code": "ResourceNotFound", "message": f"{path} was not found."}}

    def assigned(self, role: str) -> list[str]:
        """Who has a role."""
        given = [entry for name, entry in self.things.items() if "/roleassignments/" in name]
        return [entry["name"] for entry in given if entry["properties"]["roleDefinitionId"].lower() == role]

    def delete(self, identifier: str) -> None:
        for name in [entry for entry in self.things if f"{entry}/".startswith(f"{identifier}/")]:
            del self.things[name]
        for name in [
            entry for entry, resource in self.things.items() if resource.get("managedBy", "").lower() == identifier
        ]:
            del self.things[name]  # its disk goes with a machine


class Handler(BaseHTTPRequestHandler):
    cloud: Cloud

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        self.cloud.asked.append(f"GET {url.path}")
        storage = query.get("restype") == ["container"]
        if self.headers["Authorization"] != f"Bearer {'storage' if storage else 'management'}":
            return self._send(401, {"error": {"code": "InvalidAuthenticationToken", "message": "no token"}})
        if self.cloud.busy > 0:
            self.cloud.busy -= 1
            return self._send(429, {"error": {"code": "TooManyRequests", "message": "slower"}}, {"Retry-After": "0"})
        if url.path.startswith("/operations/"):
            return self._operation(url.path, location="location" in query)
        if storage:
            return self._blobs(query)
        if "api-version" not in query:
            return self._send(400, {"error": {"code": "MissingApiVersionParameter", "message": "no api-version"}})
        if wrong := refused_request("GET", url.path, query, None):
            return self._send(400, {"error": {"code": "InvalidResourceType", "message": "; ".join(wrong)}})
        code, found = self.cloud.answer(url.path, query)
        if not isinstance(found, list) or url.path.endswith("/versions"):
            return self._send(code, found)
        start = int(query.get("$skiptoken", ["0"])[0])
        answer: dict[str, Any] = {"value": found[start : start + PAGE]}
        if start + PAGE < len(found):
            rest = "&".join(f"{key}={value[0]}" for key, value in query.items() if key != "$skiptoken")
            answer["nextLink"] = f"{self._host()}{url.path}?{rest}&$skiptoken={start + PAGE}".replace(" ", "%20")
        return self._send(code, answer)

    def do_DELETE(self) -> None:
        url = urlsplit(self.path)
        path = url.path.lower()
        self.cloud.asked.append(f"DELETE {path}")
        if wrong := refused_request("DELETE", url.path, parse_qs(url.query), None):
            return self._send(400, {"error": {"code": "InvalidResourceType", "message": "; ".join(wrong)}})
        if path not in self.cloud.things:
            return self._send(404, {"error": {"code": "ResourceNotFound", "message": "not found"}})
        if "/roledefinitions/" in path and self.cloud.assigned(path):
            error = {"code": "RoleDefinitionHasAssignments", "message": "there are existing role assignments"}
            return self._send(400, {"error": error})
        if any(kind in path for kind in ("storageaccounts", "microsoft.authorization", "microsoft.consumption")):
            # these go at once
            self.cloud.delete(path)
            return self._send(200, {})
        name = f"/operations/{len(self.cloud.operations)}"
        self.cloud.operations[name] = (path, 2)
        is_group = self.cloud.things[path]["type"] == "group"
        link = f"{self._host()}{name}" + ("?location=1" if is_group else "")
        return self._send(202, None, {"Location" if is_group else "Azure-AsyncOperation": link, "Retry-After": "0"})

    def _operation(self, name: str, *, location: bool) -> None:
        path, looks = self.cloud.operations[name]
        self.cloud.operations[name] = (path, looks - 1)
        if looks > 0:
            headers = {"Location": f"{self._host()}{name}?location=1"} if location else {}
            return self._send(202 if location else 200, {"status": "InProgress"}, {**headers, "Retry-After": "0"})
        if path in self.cloud.refuses:
            record = {"status": "Failed", "error": {"code": "InUseSubnetCannotBeDeleted", "message": "in use"}}
            return self._send(200, record)
        self.cloud.delete(path)
        return self._send(200, {"status": "Succeeded"})

    def _blobs(self, query: dict[str, list[str]]) -> None:
        included = query.get("include", [""])[0].split(",")
        blobs = {**self.cloud.blobs, **(self.cloud.deleted if "deleted" in included else {})}
        names = sorted(blobs)
        start = int(query.get("marker", ["0"])[0] or 0)
        entries = "".join(
            f"<Blob><Name>{name}</Name><Properties><Content-Length>{blobs[name]}</Content-Length></Properties></Blob>"
            for name in names[start : start + PAGE]
        )
        following = str(start + PAGE) if start + PAGE < len(names) else ""
        text = f"<EnumerationResults><Blobs>{entries}</Blobs><NextMarker>{following}</NextMarker></EnumerationResults>"
        self._send(200, text)

    def _host(self) -> str:
        return f"http://{self.headers['Host']}"

    def _send(self, code: int, body: object, headers: dict[str, str] | None = None) -> None:
        data = b"" if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def azure() -> Iterator[tuple[str, Cloud]]:
    """(endpoint, what is there): an empty subscription."""
    cloud = Cloud()
    with listening(type("Own", (Handler,), {"cloud": cloud})) as url:
        yield url, cloud
