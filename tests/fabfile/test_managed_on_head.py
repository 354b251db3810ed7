"""`fab train --managed --on head`: what it refuses, what the head gets, how the manager asks for machines."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fab_command import fab
from invoke.exceptions import Exit
from memory_backend import MemoryBackend
from played_manager import Played, decisions, managed

from fabfile import targets
from fabfile.backends.base import JobState
from fabfile.managed import asked, on_head, software, start
from fabfile.managed.asked import Asked, as_the_head_sees
from fabfile.managed.machines import Needs
from fabfile.managed.replacement import NoRoom, NotReplaced
from fabfile.managed.watch import Seen
from fabfile.workdir import requirements
from infra.inventory import KubeCluster, Node, SshCluster
from node.job import files
from node.job.manager_service import FOLDER, INVENTORY, MAKER, REPLY, REQUEST

pytest_plugins = ("played_manager",)
MINE = ("train", "smoke", "--managed", "--yes", "--on")
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAA"
NEWER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBBB"
CLUSTER = SshCluster(
    name="yard",
    identity_file="~/.ssh/id",
    jump_host="203.0.113.7",
    nodes=tuple(
        Node(
            name=f"node{n}",
            role="head" if n == 1 else "worker",
            private_ip=f"10.0.0.{n}",
            ssh_host=f"203.0.113.{n}",
            host_key=KEY,
            console="/var/log/c",
        )
        for n in (1, 2)
    ),
)
NEEDS = Needs(["node2"], "job = 1", "/code/abc", [])


def test_kubernetes_has_no_head_for_it(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = KubeCluster(name="local", namespace="default", image="x", workers=3, gpus_per_worker=0)
    monkeypatch.setattr(targets, "load_any", lambda _stack, _inventory: there)
    assert fab(*MINE, "head") == 2
    assert "--on head: a cluster with Kubernetes has no head that could hold a manager" in capsys.readouterr().err
    assert backend.table == []


def test_a_job_is_handed_over_with_its_bounds_and_without_the_operators_files(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    orders: list[tuple[str, dict[str, Any]]] = []

    def answer(_head: object, verb: str, _job: str, order: dict[str, Any]) -> dict[str, Any]:
        orders.append((verb, order))
        return {}

    monkeypatch.setattr(start, "checked", lambda _stack: {"cloud": "", "max_hours": 0})
    monkeypatch.setattr(targets, "load_any", lambda _stack, _inventory: replace(CLUSTER, identity_file=""))
    monkeypatch.setattr(software, "install", lambda *_: SimpleNamespace(folder="/code/abc"))
    monkeypatch.setattr(requirements, "ensure", lambda *_: {"node1": "/envs/def/bin"})
    monkeypatch.setattr(on_head, "Head", lambda _fleet: None)
    monkeypatch.setattr(on_head, "_ask", answer)
    assert fab(*MINE, "head", "--max-hours", "5", "--detach") == 0
    ((verb, order),) = orders
    assert verb == "start" and order["settings"]["nodes"] == 3 and order["settings"]["resume"] is False
    assert order["settings"]["options"]["max_hours"] == 5 and order["settings"]["options"]["on"] == ""
    assert order["record"]["job"] == "smoke-1" and order["record_path"] == ".trainyard/local/managed/smoke-1.json"
    assert (order["code"], order["path"]) == ("/code/abc", "/envs/def/bin")
    said = capsys.readouterr().out
    assert "smoke-1 is managed on node1\n" in said
    assert "next: fab train --resume smoke-1 --managed --on head" in said


def test_the_head_gets_private_addresses_and_pinned_packages() -> None:
    seen = as_the_head_sees(CLUSTER)
    assert {"identity_file", "jump_host"} & {key for key, value in seen.items() if value} == set()
    for node in seen["nodes"]:
        assert not node.get("ssh_host") and not node.get("console") and node["private_ip"].startswith("10.0.0.")
    packages = software.packages().splitlines()
    assert all("==" in line for line in packages), packages
    assert {line.partition("==")[0] for line in packages} >= {"fabric", "paramiko", "invoke", "PyYAML", "pathspec"}
    assert not any(line.startswith(("pulumi", "torch")) for line in packages)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "smoke-1" / FOLDER).mkdir(parents=True)
    files.write(tmp_path / "smoke-1" / FOLDER / INVENTORY, as_the_head_sees(CLUSTER))
    return tmp_path / "smoke-1"


def test_a_host_key_that_the_nodes_have_learned_since_counts(run_dir: Path, tmp_path: Path) -> None:
    """Somebody has made node2 again by `fab up` and `fab wait`, and nobody has told the manager."""
    known = tmp_path / "ssh_known_hosts"
    machines = Asked(run_dir, {}, known)
    assert [node.host_key for node in machines.cluster().nodes] == [KEY, KEY] and not machines.has_changed()
    known.write_text(f"# BEGIN\nnode1,10.0.0.1 {KEY}\nnode2,10.0.0.2 {NEWER}\n")
    assert machines.has_changed()
    assert [node.host_key for node in machines.cluster().nodes] == [KEY, NEWER] and not machines.has_changed()


def present(run_dir: Path, seconds: float) -> None:
    files.write(run_dir / FOLDER / MAKER, {"who": "ann@laptop (process 1)", "until": time.time() + seconds})


def test_nobody_is_there_until_somebody_says_so(run_dir: Path) -> None:
    machines = Asked(run_dir, {})
    assert "fab train --resume smoke-1 --managed --on head" in machines.nobody()
    present(run_dir, 30)
    assert machines.nobody() == ""
    present(run_dir, -1)
    assert machines.nobody()


@pytest.mark.parametrize(
    ("result", "error"), [("made", None), ("no room", NoRoom), ("not made", NotReplaced), ("", NotReplaced)]
)
def test_what_comes_of_a_request(
    result: str, error: type[Exception] | None, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asked, "_POLL", 0.01)
    present(run_dir, 30)
    seen: list[dict[str, Any]] = []

    def operator() -> None:
        while not (request := files.read(run_dir / FOLDER / REQUEST)):
            time.sleep(0.01)
        seen.append(request)
        if result:
            files.write(run_dir / FOLDER / REPLY, {"id": request["id"], "result": result, "why": "because"})
        else:
            present(run_dir, -301)  # it closes its laptop, for long

    thread = threading.Thread(target=operator)
    thread.start()
    try:
        if error is None:
            Asked(run_dir, {}).make_again(["node2"], ["node2"], NEEDS)
        else:
            with pytest.raises(error, match="because" if result else r"ann@laptop \(process 1\) has gone meanwhile"):
                Asked(run_dir, {}).make_again(["node2"], ["node2"], NEEDS)
    finally:
        thread.join(5)
    assert Needs(**seen[0]["needs"]) == NEEDS and seen[0]["names"] == ["node2"]
    assert not (run_dir / FOLDER / REQUEST).exists()


def test_a_lost_node_waits_for_somebody_who_can_make_it(played: Played) -> None:
    manager = managed(played)
    played.nobody_is_there = "it is made again as soon as somebody who can do that is there"

    def comes() -> None:
        played.nobody_is_there = ""

    played.script = {2: lambda: played.lose("node3"), 9: comes, 14: played.ends}
    manager.run()
    assert played.made == [("node3",)] and manager.session.record.replaced == 1, "to wait is no try"
    assert decisions(manager)[0] == (
        "node3: its machine has ended; it is made again as soon as somebody who can do that is there"
    )
    assert "node3 replaced" in decisions(manager)[2], "said once, and then done"


def test_a_job_that_failed_with_its_machine_waits_likewise(played: Played) -> None:
    manager = managed(played)
    played.nobody_is_there = "it is made again later"

    def dies() -> None:
        played.lose("node2")
        played.ends(JobState.FAILED, 1, "node2 (rank 1) is cut off: no word for 6 s")

    def comes() -> None:
        played.nobody_is_there = ""

    played.script = {2: dies, 9: comes, 14: lambda: played.ends()}
    manager.run()
    assert played.made == [("node2",)] and "smoke-1 resumed from its last checkpoint" in decisions(manager)


class Line:
    """Plays the connection to the manager."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.heard: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.reply: dict[str, Any] | None = None
        for answer in answers:
            self.heard.put({"is_there": True, "last": "", "request": {}, "ended": {}, "maker": ""} | answer)


class Machines:
    """Makes machines as `outcome` says."""

    def __init__(self, outcome: Exception | None = None) -> None:
        self.outcome, self.made = outcome, list[tuple[object, ...]]()

    def cluster(self) -> SshCluster:
        return CLUSTER

    def make_again(self, *asked: object) -> None:
        self.made.append(asked)
        if self.outcome:
            raise self.outcome


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Seen]:
    found = {"node1": Seen("node1", "ready"), "node2": Seen("node2", "gone")}
    monkeypatch.setattr(on_head, "_seen", lambda _cluster: found)
    return found


REQUESTED = {"request": {"id": "7", "names": ["node2"], "gone": [], "needs": {"bring": [], "job": "", "code": ""}}}
ENDED = {"ended": {"code": 0, "text": ""}}


@pytest.mark.parametrize(
    ("outcome", "reply"),
    [
        (None, {"id": "7", "result": "made", "why": ""}),
        (NoRoom("node2: no room"), {"id": "7", "result": "no room", "why": "node2: no room"}),
        (
            NotReplaced("`up` ended with exit code 1"),
            {"id": "7", "result": "not made", "why": "`up` ended with exit code 1"},
        ),
        (Exit("there is\nno stack", code=2), {"id": "7", "result": "not made", "why": "there is no stack"}),
    ],
)
def test_who_follows_makes_what_is_asked_for_once(
    outcome: Exception | None, reply: dict[str, str], seen: dict[str, Seen]
) -> None:
    line, machines = Line(REQUESTED, REQUESTED, ENDED), Machines(outcome)
    ended = on_head._serve(line, machines, "smoke-1", "node1")  # type: ignore[arg-type]
    assert ended == ENDED["ended"] and line.reply == reply
    assert machines.made == [(["node2"], ["node2"], Needs([], "", ""))]


@pytest.mark.parametrize(
    ("asked_for", "why"),
    [
        ({"names": ["node9"]}, "yard has no 'node9'"),
        ({"names": ["node1"]}, "node1, the head, alone has the job's files"),
        ({"names": ["node2"], "needs": {"bring": []}}, "the request cannot be read: TypeError"),
        ({}, "the request cannot be read: KeyError('names')"),
    ],
)
def test_what_a_program_on_the_head_may_have_asked_is_refused(
    asked_for: dict[str, Any], why: str, seen: dict[str, Seen]
) -> None:
    machines = Machines()
    request = {"id": "7", "gone": [], "needs": {"bring": [], "job": "", "code": ""}, **asked_for}
    reply = on_head._made(machines, request)  # type: ignore[arg-type]
    assert reply["result"] == "not made" and why in reply["why"] and machines.made == []


def test_a_machine_that_is_well_again_is_left_alone(seen: dict[str, Seen]) -> None:
    """As one that was made again while the connection to the manager was lost, which then asked once more."""
    seen["node2"] = Seen("node2", "ready")
    machines = Machines()
    assert on_head._made(machines, REQUESTED["request"])["result"] == "made"  # type: ignore[arg-type]
    assert machines.made == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"last": "No module named 'fabric'"}, "node1 cannot run it: No module named 'fabric'"),
        ({"is_there": False}, "node1 does not have it any more"),
    ],
)
def test_a_manager_that_cannot_run_is_not_waited_for(answer: dict[str, Any], why: str) -> None:
    with pytest.raises(Exit, match=why) as stopped:
        on_head._serve(Line(answer), Machines(), "smoke-1", "node1")  # type: ignore[arg-type]
    assert stopped.value.code == 1 and "next: fab train --resume smoke-1 --managed" in str(stopped.value.message)


def test_a_head_that_is_silent_for_long_is_not_waited_for() -> None:
    with pytest.raises(Exit, match="node1, with the manager of smoke-1, has not answered for 0 s: No route to host"):
        on_head._serve(Line({"silent": "No route to host", "patience": -1.0}), Machines(), "smoke-1", "node1")  # type: ignore[arg-type]
