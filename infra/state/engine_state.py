"""The embedded engine's state: one JSON file per stack, rewritten after every change."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.config.settings import check_stack
from infra.errors import UsageError
from infra.state import operation, stack_record


@dataclass(frozen=True)
class StoredResource:
    """One resource. `pending` while it is being made: after a crash it may or may not exist."""

    name: str
    id: str
    outputs: dict[str, Any]
    pending: bool = False


class EngineState:
    """All resources of a stack in the order of creation. Thread-safe."""

    def __init__(self, directory: Path, *, saved: bool = True) -> None:
        self._saved = saved
        self._path = directory / "state.json"
        self._temporary = directory / "state.tmp"
        self._lock = threading.Lock()
        self._resources: dict[str, StoredResource] = {}
        self.outputs: dict[str, Any] = {}
        if self._path.exists():
            self._read()

    def _read(self) -> None:
        try:
            loaded = json.loads(self._path.read_text())
            self._resources = {entry["name"]: StoredResource(**entry) for entry in loaded["resources"]}
            self.outputs = loaded["outputs"]
        except (ValueError, KeyError, TypeError) as error:
            remedy = "put a copy back, or move it away and run: fab recover"
            raise UsageError(f"{self._path}: not a stack's state ({type(error).__name__}: {error}); {remedy}") from None

    @staticmethod
    @contextmanager
    def opened(stack: str, *, shared: bool) -> Iterator[EngineState]:
        """The stack's state, locked. The lock ends with its process, so a killed one leaves none behind."""
        check_stack(stack)
        directory = stack_record.own_folder("engine", stack)
        with ExitStack() as held:
            try:
                held.enter_context(operation.lock(directory, exclusive=not shared, timeout=10.0 if shared else 1.0))
            except operation.LockBusy as busy:
                who = f"process {busy.holder}" if busy.holder else "another process"
                raise UsageError(f"stack {stack}: {who} is at work on it; wait for it, or stop it") from None
            held.callback(_remove_if_empty, directory)
            yield EngineState(directory)

    def scratch(self) -> EngineState:
        """A copy in memory that is never written."""
        copy = EngineState(self._path.parent, saved=False)
        copy._resources, copy.outputs = dict(self._resources), self.outputs
        return copy

    def get(self, name: str) -> StoredResource | None:
        """The resource of this name, if there is one."""
        return self._resources.get(name)

    def put(self, resource: StoredResource) -> None:
        """Store a resource, under its name."""
        with self._lock:
            if resource.pending:
                self._resources.pop(resource.name, None)  # made again: moves to the end of the order
            self._resources[resource.name] = resource
            self._write()

    def remove(self, name: str) -> None:
        """Drop a resource. KeyError for an unknown one."""
        with self._lock:
            del self._resources[name]
            self._write()

    def set_outputs(self, outputs: dict[str, Any]) -> None:
        """Store the stack's outputs."""
        with self._lock:
            self.outputs = outputs
            self._write()

    def reversed(self) -> list[StoredResource]:
        """All resources, the newest first."""
        return list(reversed(self._resources.values()))

    def by_urn(self) -> dict[str, dict[str, Any]]:
        """The finished resources, in the form of Pulumi's own function: {URN: {"type", "outputs"}}."""
        return {
            f"embedded::{entry.name}": {
                "type": "pulumi-python:dynamic:Resource",
                "outputs": {key: value for key, value in entry.outputs.items() if not key.startswith("__")},
            }
            for entry in self._resources.values()
            if not entry.pending
        }

    def forget(self) -> None:
        """Delete the state of a stack that has no resources left."""
        self._path.unlink(missing_ok=True)
        self._temporary.unlink(missing_ok=True)

    def text(self) -> str:
        """The state as JSON."""
        resources = [dataclasses.asdict(resource) for resource in self._resources.values()]
        return json.dumps({"resources": resources, "outputs": self.outputs}, indent=1)

    def _write(self) -> None:
        if not self._saved:
            return
        with self._temporary.open("w") as file:
            file.write(self.text())
            file.flush()
            os.fsync(file.fileno())
        self._temporary.replace(self._path)


def _remove_if_empty(directory: Path) -> None:
    """Remove the folder, and empty ones above it, if only the lock needed them: a refused verb leaves nothing."""
    with suppress(OSError):  # it holds a state, or another reader removed it first
        for folder in (directory, directory.parent, directory.parent.parent):
            folder.rmdir()
