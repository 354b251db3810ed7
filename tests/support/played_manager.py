"""A manager's job on three nodes, with a backend in this process, and an engine that is played."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from memory_backend import NODES, MemoryBackend

from fabfile.backends.base import Backend, JobRecord, JobState
from fabfile.backends.submission import Submission
from fabfile.job_file import resolve
from fabfile.managed import manager as managers
from fabfile.managed import places, replacing, session
from fabfile.managed.manager import Manager
from fabfile.managed.record import Record
from fabfile.managed.session import Session
from fabfile.managed.watch import Seen
from infra.inventory import Node, SshCluster

CLUSTER = SshCluster(
    name="yard", nodes=tuple(Node(name=name, private_ip=f"127.0.0.{n}") for n, name in enumerate(NODES, 1))
)
GONE = "its machine has ended"


@dataclass
class Played:
    """A job on three nodes, and the engine that makes its nodes again."""

    backend: MemoryBackend
    troubles: dict[str, Seen] = field(default_factory=dict)
    outcomes: list[Exception] = field(default_factory=list)
    """What the next calls of the engine raise."""
    made: list[tuple[str, ...]] = field(default_factory=list)
    brought: list[tuple[str, ...]] = field(default_factory=list)
    """The nodes that got code and data when they were made again."""
    equipped: list[tuple[str, ...]] = field(default_factory=list)
    """The nodes that got code and data before the job went back to them."""
    unequipped: list[Exception] = field(default_factory=list)
    """What the next calls that are to equip nodes raise."""
    looks: int = 0
    script: dict[int, Callable[[], None]] = field(default_factory=dict)
    """What happens at which look at the nodes."""

    def nodes(self) -> list[Seen]:
        self.looks += 1
        assert self.looks < 200, "the manager does not come to an end"
        self.script.pop(self.looks, lambda: None)()
        return [self.troubles.get(name, Seen(name, "ready")) for name in NODES]

    def equip(self, _stack: str, _facts: object, names: Collection[str], *_more: object) -> None:
        self.equipped.append(tuple(names))
        if self.unequipped:
            raise self.unequipped.pop(0)

    def equip_new(self, _stack: str, _facts: object, names: Collection[str], *_more: object) -> None:
        self.brought.append(tuple(names))

    def make_again(self, _stack: str, _facts: object, names: Collection[str], _gone: Collection[str]) -> None:
        self.made.append(tuple(names))
        if self.outcomes:
            raise self.outcomes.pop(0)
        for name in names:
            self.troubles.pop(name, None)

    def lose(self, name: str, state: str = "gone", **more: str) -> None:
        """The machine ends, and the job's supervisor goes on without it."""
        self.troubles[name] = Seen(name, state, GONE, **more)
        self.change(nodes=tuple(node for node in self.job.nodes if node != name), attempt=self.job.attempt + 1)

    @property
    def job(self) -> JobRecord:
        return self.backend.table[0]

    def change(self, **changes: Any) -> None:
        self.backend.table = [replace(self.job, **changes)]

    def ends(self, state: JobState = JobState.SUCCEEDED, code: int = 0, reason: str = "", by: str = "") -> None:
        self.backend.end(self.job.id, state, code, reason)
        self.change(ended_by=by)


@pytest.fixture
def played(home: object, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> Played:
    made = Played(backend)
    text = resolve("smoke", (), 3)
    with backend:
        backend.submit(Submission(job=text, nodes=3))
    backend.table = [replace(backend.table[0], attempt=1)]
    backend.is_open = True

    class Look:
        def __init__(self, cluster: SshCluster) -> None:
            self.cluster, self.nodes = cluster, made.nodes

        def close(self) -> None: ...

    monkeypatch.setattr(session, "Look", Look)
    monkeypatch.setattr(session, "load_any", lambda _stack, _inventory: CLUSTER)
    monkeypatch.setattr(replacing, "make_again", made.make_again)
    monkeypatch.setattr(replacing, "equip", made.equip_new)
    monkeypatch.setattr(managers, "equip", made.equip)
    monkeypatch.setattr(MemoryBackend, "__exit__", lambda *_: None)
    monkeypatch.setattr(managers, "POLL", 0.0)
    monkeypatch.setattr(replacing, "_POLL", 0.0)
    monkeypatch.setattr(replacing, "_LEAVING", 0.1)
    monkeypatch.setattr(places, "FIRST", 0.01)
    monkeypatch.setattr(session.Pause, "first", 0.01)
    monkeypatch.setattr(session.Pause, "begin", lambda self, seconds=0.0: setattr(self, "seconds", seconds or 20.0))
    return made


def managed(played: Played, *, elastic: bool = False, **more: Any) -> Manager:
    record = Record("smoke-1", "yard", 3, time.time(), prices=[(time.time(), 3.0)], **more)

    def again(there: Backend, job: str, nodes: int) -> Submission:
        return Submission(job=resolve("smoke", (), 3), nodes=nodes, begun=there.begun(job))

    return Manager(Session(record, {"cloud": ""}, elastic), again)


def decisions(manager: Manager) -> list[str]:
    return [one["text"] for one in manager.session.record.decisions]
