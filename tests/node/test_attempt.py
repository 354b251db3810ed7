"""An attempt at a job, with keepers that say what a test wants."""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fabfile.launchers import KEEPERS, Launch
from infra.inventory import Node
from node.job import attempt as attempts
from node.job.attempt import Attempt
from node.job.diagnosis import Outcome
from node.job.keeper_connection import NodeEvent
from node.job.log import Log
from node.job.spec import KeeperSpec

NODES = tuple(Node(name=f"node{number}", private_ip=f"10.0.0.{number}", slots=1, cores_per_slot=1) for number in (1, 2))


class Keeper:
    """Says that it is ready, and then that it is there, until it is cut; a silent one says nothing."""

    complaint = ""

    def __init__(self, node: str, events: queue.SimpleQueue[NodeEvent], *, silent: bool) -> None:
        self.node, self._events, self._over = node, events, threading.Event()
        if not silent:
            threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        self._events.put((self.node, {"event": "ready", "port": 20000}))
        while not self._over.wait(0.05):
            self._events.put((self.node, {"event": "beat"}))

    def say(self, word: str) -> None:
        if word == "end":
            self._events.put((self.node, {"event": "clean", "alive": []}))

    def cut(self) -> None:
        self._over.set()


class Machines:
    """Two nodes, of which one does not answer."""

    own_address = "10.0.0.1"

    def link(self, spec: KeeperSpec, _program: str, events: queue.SimpleQueue[NodeEvent]) -> Keeper:
        return Keeper(spec.node, events, silent=spec.node == "node2")


def test_a_node_that_does_not_answer_is_named_while_others_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "ANSWER", 0.5)
    (tmp_path / "job.toml").write_text("")
    launch = Launch(id="job-1", nodes=NODES, run_dir=str(tmp_path), code="/code")
    log, machines = Log(tmp_path / "log", "node1"), Machines()
    anything: Any = machines
    began = time.monotonic()
    outcome = Attempt("mpirun", anything, launch, 10.0, log, lambda: "", 0.0).run()
    assert (outcome.code, outcome.reason) == (1, "node2 does not answer: no word for 0 s")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(("at", "seconds"), [(1_025.0, "25.0"), (1_200.0, "40.0"), (990.0, "40.0"), (None, "40.0")])
def test_the_keepers_hear_how_long_the_ranks_have(
    tmp_path: Path, at: float | None, seconds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until they are killed, or the node goes that is the cause; not if nobody has said when that is."""
    launch = Launch(id="job-1", nodes=NODES, run_dir=str(tmp_path), code="/code")
    anything: Any = Machines()
    attempt = Attempt("mpirun", anything, launch, 10.0, Log(tmp_path / "log", "node1"), lambda: "", 0.0)
    said: list[str] = []
    monkeypatch.setattr(attempt, "_say", said.append)
    if at is not None:
        attempt.expiry.known("node1", at, "Azure takes this Spot node")
        assert attempt.expiry.asked(1_000.0, said.append) == "stop"
    attempt._ask_to_stop(1_000.0)
    assert said[-1] == f"term {seconds}"


class Worlds:
    """Of an elastic job that could lose any rank."""

    def go_on(self, _verdict: Outcome) -> bool:
        return True


@pytest.mark.parametrize(
    ("first", "shared", "gone", "goes_on"),
    [(0, "", 0, True), (0, "", 1, True), (1, "", 0, True), (1, "", 1, False), (1, "/fsx", 1, True)],
)
def test_an_elastic_job_does_not_go_on_without_the_files_on_its_first_node(
    tmp_path: Path, first: int, shared: str, gone: int, goes_on: bool
) -> None:
    nodes = (NODES[first], NODES[1 - first])
    launch = Launch(id="job-1", nodes=nodes, run_dir=str(tmp_path), code="/code", shared_dir=shared)
    log, machines, worlds = Log(tmp_path / "log", "node1"), Machines(), Worlds()
    anything: Any = machines
    attempt = Attempt(KEEPERS, anything, launch, 10.0, log, lambda: "", 0.0)
    anything = worlds
    attempt.worlds = anything
    attempt._watch.cut_off(NODES[gone].name, "its keeper ended", 1.0)
    assert attempt._goes_on(Outcome(1)) is goes_on
