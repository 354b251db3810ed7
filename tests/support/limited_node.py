"""A node for bootstrap/limits.py, which runs as its timer runs it, under a root of its own.

What it calls (systemctl, wall, runuser) are programs of the test; what it reads of /proc is a folder; Azure's metadata
service and its manager are a web server on loopback.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import http_server
from bootstrap_runner import BOOTSTRAP
from http_server import Answer, Asked, Server

PROGRAM = BOOTSTRAP / "limits.py"
HOUR, MINUTE = 3600.0, 60.0
ENVIRONMENT = {
    "TRAINYARD_MODE": "node",
    "TRAINYARD_NODE": "node1",
    "TRAINYARD_ROLE": "head",
    "TRAINYARD_CLUSTER": "local",
    "TRAINYARD_MAX_HOURS": "0",
    "TRAINYARD_IDLE_MINUTES": "0",
}
WORKER = {"TRAINYARD_NODE": "node3", "TRAINYARD_ROLE": "worker"}
SSH = {"SSH_CONNECTION": "203.0.113.7 50000 10.0.0.10 22"}


@dataclass(frozen=True)
class Node:
    """A root with the records of a node, and the programs that are called on it."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "var/lib/trainyard"

    def program(self, name: str, body: str = "") -> None:
        path = self.root / "bin" / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.root}/called\n{body}\n')
        path.chmod(0o755)

    def process(self, pid: int, command: str, environment: dict[str, str] | None = None) -> None:
        folder = self.root / "proc" / str(pid)
        folder.mkdir()
        (folder / "cmdline").write_text(command.replace(" ", "\0") + "\0")
        (folder / "environ").write_text("".join(f"{key}={value}\0" for key, value in (environment or {}).items()))

    def booted(self, ago: float) -> None:
        (self.state / "first-boot.json").write_text(json.dumps({"time": time.time() - ago, "instance": "i"}))

    @property
    def limits(self) -> Path:
        return self.root / "run/trainyard/limits.json"

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.limits.read_text())
        return found

    def was(self, **values: object) -> None:
        """What the last run has left; times as seconds before now."""
        times = {key: time.time() - float(str(value)) for key, value in values.items()}
        self.limits.write_text(json.dumps({"time": time.time(), "used": "", **times}))

    def change(self, **values: object) -> None:
        """Change the last run's record by hand."""
        self.limits.write_text(json.dumps({**self.record(), **values}))

    def tick(self, **changes: str) -> list[str]:
        """One run; what was called, a word or two of each."""
        lines = [
            f"{key}={value}\n" for key, value in {**ENVIRONMENT, **changes}.items() if key.startswith("TRAINYARD_")
        ]
        (self.root / "etc/trainyard.env").write_text("".join(lines))
        return self.run(0, **{key: value for key, value in changes.items() if not key.startswith("TRAINYARD_")})

    def run(self, code: int = 0, **environment: str) -> list[str]:
        """One run with the settings that are there."""
        (self.root / "called").write_text("")
        path = f"{self.root}/bin{os.pathsep}{os.environ['PATH']}"
        environment = {**environment, "PATH": path, "TRAINYARD_PREFIX": str(self.root)}
        done = subprocess.run(
            [sys.executable, "-IS", PROGRAM], env=environment, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == code, done.stderr
        return (self.root / "called").read_text().splitlines()

    def ends(self, **changes: str) -> bool:
        return "systemctl poweroff -i" in self.tick(**changes)

    def head_says(self, **values: object) -> None:
        """What the head's record is to a worker that asks for it."""
        record = json.dumps({"time": time.time(), "used": "", **values})
        self.program("runuser", f"cat <<'END'\n{record}\nEND")


POWEROFF = "systemctl poweroff -i"


MACHINE = (
    "/subscriptions/0/resourceGroups/trainyard-yard/providers/Microsoft.Compute/virtualMachines/trainyard-yard-node1"
)


def azure(asked: Asked, *, allowed: bool = True) -> Answer:
    """The metadata service and the resource manager, as they are documented."""
    if asked.path.startswith("/metadata/"):
        if asked.headers.get("metadata") != "true":
            return Answer(400, b'{"error": "invalid_request"}')
        if "/identity/oauth2/token" in asked.path and "resource=https://management.azure.com/" in asked.path:
            return Answer(body=b'{"access_token": "secret", "expires_on": "1", "token_type": "Bearer"}')
        return Answer(body=MACHINE.encode())
    if asked.headers.get("authorization") != "Bearer secret" or not allowed:
        return Answer(403, b'{"error": {"code": "AuthorizationFailed"}}')
    return Answer(202, headers={"Location": "https://management.azure.com/subscriptions/0/operations/1"})


@contextmanager
def cloud(*, allowed: bool = True) -> Iterator[tuple[Server, dict[str, str]]]:
    with http_server.serve(lambda asked: azure(asked, allowed=allowed)) as server:
        environment = {"TRAINYARD_CLUSTER": "azure-xeon", "TRAINYARD_IMDS": server.url, "TRAINYARD_ARM": server.url}
        yield server, {**environment, "TRAINYARD_MAX_HOURS": "1"}
