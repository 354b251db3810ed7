"""A stand-in for Azure's management interface over HTTP: one machine, its power and its run commands.

The answers have the shape of the documentation: "Virtual Machine Run Commands - Get By Virtual Machine" (an instance
view only with $expand), "Virtual Machines - Instance View", "- Deallocate" and "- Start" (202 without a body).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from azure_judge import refused_request
from http_server import listening

MACHINE = "/subscriptions/s/resourceGroups/trainyard-xeon/providers/Microsoft.Compute/virtualMachines/trainyard-xeon-vm"
ENDED = {"executionState": "Succeeded", "exitCode": 0, "output": "done", "error": "", "executionMessage": ""}


@dataclass
class Machine:
    """What the stand-in does, and what it was asked."""

    power: str = "running"
    view: dict[str, Any] = field(default_factory=lambda: dict(ENDED))
    """How every command ends."""
    looks: int = 2
    """So many times a command is still running."""
    broken: int = 0
    """So many requests are answered by 503 first."""
    asked: list[str] = field(default_factory=list)
    commands: dict[str, dict[str, Any]] = field(default_factory=dict)
    on_power: Callable[[Machine], None] = lambda machine: None
    """Called at each look at the power."""

    def answer(
        self, method: str, path: str, query: dict[str, list[str]], body: Any
    ) -> tuple[int, dict[str, Any] | None]:
        assert query["api-version"] == ["2024-11-01"]
        if wrong := refused_request(method, path, query, body):
            return 400, {"error": {"code": "InvalidRequest", "message": "; ".join(wrong)}}
        what = path.removeprefix(MACHINE)
        self.asked.append(f"{method} {what.split('-')[0]}")
        if what.startswith("/runCommands/"):
            return self._command(method, what, query, body)
        if (method, what) == ("GET", "/instanceView"):
            self.on_power(self)
            codes = ["ProvisioningState/succeeded", f"PowerState/{self.power}"]
            return 200, {"statuses": [{"code": code, "level": "Info"} for code in codes]}
        if (method, what) == ("POST", "/deallocate"):
            self.power = "deallocated"
            return 202, None
        if (method, what) == ("POST", "/start"):
            self.power = "running"
            return 202, None
        return 404, {"error": {"code": "ResourceNotFound", "message": f"The resource {path} was not found."}}

    def _command(self, method: str, what: str, query: dict[str, list[str]], body: Any) -> tuple[int, dict[str, Any]]:
        if self.power != "running":
            message = "Cannot modify extensions in the VM when the VM is not running."
            return 409, {"error": {"code": "OperationNotAllowed", "message": message}}
        if method == "PUT":
            self.commands[what] = {"location": body["location"], **body["properties"], "looks": self.looks}
            return 201, {"name": what, "properties": {**body["properties"], "provisioningState": "Creating"}}
        command = self.commands[what]
        properties = {"source": command["source"], "provisioningState": "Succeeded"}
        if query.get("$expand") == ["instanceView"]:
            running = command["looks"] > 0
            command["looks"] -= 1
            properties["instanceView"] = {"executionState": "Running", "output": "so far"} if running else self.view
        return 200, {"name": what, "properties": properties}


@contextmanager
def serve(machine: Machine) -> Iterator[str]:
    """The stand-in's address, as long as the block lasts. Who has no token is sent away."""

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            url = urlsplit(self.path)
            answer: dict[str, Any] | None
            if self.headers["Authorization"] != "Bearer let-me-in":
                status, answer = 401, {"error": {"code": "AuthenticationFailed", "message": "Authentication failed."}}
            elif machine.broken:
                machine.broken -= 1
                status, answer = 503, {"error": {"code": "ServerTimeout", "message": "Try again."}}
            else:
                status, answer = machine.answer(self.command, url.path, parse_qs(url.query), body)
            data = b"" if answer is None else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = _do

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with listening(Handler) as url:
        yield url
