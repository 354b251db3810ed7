"""A manager's loop, with a backend in this process and an engine that is played: what it replaces, moves and stops."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from invoke.exceptions import Exit
from memory_backend import NODES, MemoryBackend
from played_manager import GONE, Played, decisions, managed

from fabfile.backends.base import JobState, Unreachable
from fabfile.backends.submission import Submission
from fabfile.job_file import resolve
from fabfile.managed import manager as managers
from fabfile.managed import relocation, session
from fabfile.managed.bounds import Bounds
from fabfile.managed.replacement import NoRoom, NotReplaced
from fabfile.managed.watch import Seen
from node.job import endings

pytest_plugins = ("played_manager",)


def test_a_lost_node_is_replaced_and_the_job_is_moved_back(played: Played) -> None:
    manager = managed(played)
    played.script = {3: lambda: played.lose("node3"), 8: played.ends}
    assert manager.run().state == JobState.SUCCEEDED
    assert played.made == played.equipped == [("node3",)] and played.job.nodes == NODES
    assert decisions(manager)[0] == f"to be replaced: node3: {GONE}"
    assert "node3 replaced, with code and data" in decisions(manager)[1]
    assert decisions(manager)[2] == "smoke-1 goes on on all 3 nodes again, from a checkpoint"
    assert [one["without"] for one in played.backend.orders if one["without"] is not None] == [[]]
    sent = [text for one in played.backend.orders for text in one["decisions"]]
    assert sent == manager.session.record.decisions, "the head has each decision, once"


def test_a_node_with_a_full_disk_is_left_with_a_checkpoint_before_it_is_replaced(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = managed(played)
    full = Seen("node2", "ready", disk="No space left on device")
    monkeypatch.setattr("fabfile.managed.watch.PATIENCE", {"disk": 0.0})
    played.script = {2: lambda: played.troubles.update(node2=full), 8: played.ends}
    manager.run()
    assert [one["without"] for one in played.backend.orders if one["without"] is not None] == [["node2"], []]
    assert played.made == [("node2",)] and played.job.nodes == NODES


def test_no_room_is_said_and_tried_again_while_the_job_goes_on(played: Played) -> None:
    manager = managed(played)
    why = "node3: InsufficientInstanceCapacity: the cloud has no free machine of this type there now"
    played.outcomes = [NoRoom(why), NotReplaced("`up` ended with exit code 1; its last lines say why")]
    played.script = {2: lambda: played.lose("node3"), 12: played.ends}
    manager.run()
    assert played.made == [("node3",)] * 3 and played.job.nodes == NODES
    said = "\n".join(decisions(manager))
    assert f"no room: {why}; tried again in 0s; until then smoke-1 goes on with the nodes that are left" in said
    assert "node3 not replaced, tried again in 20s: `up` ended with exit code 1" in said


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        (Bounds(max_usd=1.0), r"its nodes have cost $1.50 (--max-usd 1)"),
        (Bounds(max_hours=0.25), r"it has run for 30m (--max-hours 0.25)"),
    ],
)
def test_a_bound_stops_the_job_with_a_checkpoint(bounds: Bounds, why: str, played: Played) -> None:
    manager = managed(played, bounds=bounds)
    manager.session.record.began -= 1800
    manager.session.record.prices = [(time.time() - 1800, 3.0)]
    assert manager.run().state == JobState.CANCELLED
    assert decisions(manager) == [f"smoke-1 is stopped with a checkpoint: {why}"] and manager.session.reached == why


def test_no_try_is_left_for_one_more_node(played: Played) -> None:
    manager = managed(played, bounds=Bounds(tries=2), replaced=2)
    played.script = {2: lambda: played.lose("node3")}
    assert manager.run().state == JobState.CANCELLED and played.made == []
    assert manager.session.reached == "2 replacements and restarts (--tries 2)"


def test_no_try_is_left_while_nothing_answers(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a control plane that is gone: the job cannot be stopped either."""
    manager = managed(played, bounds=Bounds(tries=2), replaced=2)
    monkeypatch.setattr(manager.session.head, "job", silence)
    played.script = {2: lambda: played.troubles.update(node3=Seen("node3", "gone", GONE))}
    with pytest.raises(Exit, match=rf"node3: {GONE}; not replaced: 2 replacements and restarts \(--tries 2\)"):
        manager.run()
    assert played.made == []


def test_a_bound_is_kept_though_nothing_answers(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = managed(played, bounds=Bounds(max_hours=0.25))
    manager.session.record.began -= 1800
    monkeypatch.setattr(manager.session.head, "job", silence)
    monkeypatch.setattr(managers, "GIVE_UP", 0.2)
    why = r"smoke-1: it has run for 30m \(--max-hours 0.25\); it cannot be stopped, as nothing has answered for 0 s"
    with pytest.raises(Exit, match=why):
        manager.run()


def silence() -> None:
    time.sleep(0.01)
    raise Unreachable("no answer in time")


def test_a_job_whose_pods_wait_is_not_moved_and_says_why_once(played: Played) -> None:
    """Its machine is drained: each try to go back would cost a restart."""
    manager = managed(played)

    def drained() -> None:
        played.lose("node3", "cordoned")
        played.change(reason="1 of 3 pods wait: 0/3 nodes are available")

    def uncordoned() -> None:
        played.troubles.clear()
        played.change(reason="")

    played.script = {2: drained, 9: uncordoned, 14: played.ends}
    manager.run()
    assert played.made == [] and played.job.nodes == NODES
    assert decisions(manager) == [
        "smoke-1 goes on with 2 of 3 nodes: 1 of 3 pods wait: 0/3 nodes are available",
        "smoke-1 goes on on all 3 nodes again, from a checkpoint",
    ]


def test_a_job_whose_pods_have_another_machine_goes_back_to_full_size_beside_a_cordoned_one(played: Played) -> None:
    manager = managed(played)
    played.script = {2: lambda: played.lose("node3", "cordoned"), 9: played.ends}
    manager.run()
    assert decisions(manager) == ["smoke-1 goes on on all 3 nodes again, from a checkpoint"] and played.made == []


def test_the_head_that_alone_has_the_job_is_not_replaced_under_it(played: Played) -> None:
    manager = managed(played)
    played.script = {2: lambda: played.troubles.update(node1=Seen("node1", "failed", "step torch")), 9: played.ends}
    manager.run()
    assert played.made == [] and decisions(manager) == [
        "node1: step torch; not replaced, as it alone has the job's files"
    ]


def test_a_job_that_failed_with_its_machine_is_resumed_when_that_is_there_again(played: Played) -> None:
    manager = managed(played)

    def dies() -> None:
        played.lose("node2")
        played.ends(JobState.FAILED, 1, "node2 (rank 1) is cut off: no word for 6 s")

    played.script = {2: dies, 9: lambda: played.ends()}
    assert manager.run().state == JobState.SUCCEEDED
    assert played.made == [("node2",)] and "smoke-1 resumed from its last checkpoint" in decisions(manager)


def test_a_node_without_the_jobs_data_gets_them_before_it_is_resumed(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its boot took longer than was waited for, so that it was not equipped, and now it is well."""
    manager = managed(played)

    def dies() -> None:
        played.lose("node2")
        played.ends(JobState.FAILED, 1, "node2 (rank 1) is cut off: no word for 6 s")

    def prepare(_backend: MemoryBackend, _submission: Submission) -> None:
        if not played.equipped:
            raise Exit("node2: data.path = /data/smoke: no such folder", code=2)

    def comes() -> None:
        played.troubles.clear()

    monkeypatch.setattr(MemoryBackend, "prepare", prepare)
    monkeypatch.setattr(session.Pause, "is_over", True)
    played.outcomes = [NotReplaced("2 of 3 nodes not ready after 90 s")]
    played.script = {2: dies, 3: comes, 12: lambda: played.ends()}
    assert manager.run().state == JobState.SUCCEEDED
    assert played.made == [("node2",)] and played.equipped == [("node2", "node3")]
    assert "smoke-1 cannot be resumed, tried again: node2: data.path = /data/smoke: no such folder" in decisions(
        manager
    )
    assert decisions(manager)[-1] == "smoke-1 resumed from its last checkpoint"


def test_a_job_that_its_user_stops_stays_stopped(played: Played) -> None:
    manager = managed(played)
    played.script = {3: lambda: played.ends(JobState.CANCELLED, 1, "stopped: step 4 is saved", by=endings.SOMEBODY)}
    assert manager.run().state == JobState.CANCELLED and played.made == []


def test_another_machine_that_manages_the_job_is_named(played: Played) -> None:
    manager = managed(played)
    played.backend.holder = "bob@desk (process 2)"
    with pytest.raises(Exit, match=r"smoke-1 is managed by bob@desk \(process 2\), for at least .* more"):
        manager.session.tell_head()


def test_without_room_the_cluster_goes_where_the_user_allows_and_the_job_comes_from_its_bucket(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = resolve("smoke", ("checkpoint.mirror=s3://bucket/runs",), 3).text
    manager = managed(played, zones=["use1-az4"], types=["m7i.4xlarge"], text=text)
    played.backend.texts["smoke-1"] = text
    why = "node3: InsufficientInstanceCapacity: the cloud has no free machine of this type there now"
    played.outcomes = [NoRoom(why)] * 3
    set_keys: list[tuple[str, str]] = []
    shortages: list[Exception] = [NoRoom("node1: VcpuLimitExceeded: the account's own limit is too low")] * 3

    def make(_stack: str, _facts: object) -> None:
        assert played.job.state == JobState.CANCELLED, "its checkpoint is in the bucket before its nodes go"
        if shortages:
            raise shortages.pop()
        played.troubles.clear()

    monkeypatch.setattr(relocation, "make", make)
    monkeypatch.setattr(relocation, "equip", lambda *_: None)
    monkeypatch.setattr(relocation, "set_key", lambda _stack, key, value: set_keys.append((key, value)))
    monkeypatch.setattr(relocation, "checked", lambda _stack: {"cloud": "aws"})
    brought: list[str] = []
    monkeypatch.setattr(
        "fabfile.managed.relocation.data.body", lambda _c, job, **_: brought.append(Path(job).read_text())
    )
    monkeypatch.setattr("fabfile.managed.relocation.time.sleep", lambda _seconds: None)
    played.script = {2: lambda: played.lose("node3"), 20: lambda: played.ends()}
    assert manager.run().state == JobState.SUCCEEDED
    assert set_keys == [("zone", "use1-az4"), ("instanceType", "m7i.4xlarge")]
    assert "s3://bucket/runs" in brought[0] and played.made == [("node3",)] * 3
    said = decisions(manager)
    assert f"no room: {why}; all nodes go to zone use1-az4, and smoke-1 with them" in said
    assert (
        "no room: node1: VcpuLimitExceeded: the account's own limit is too low; going to instanceType m7i.4xlarge"
        in said
    )
    assert "smoke-1 resumed from its last checkpoint" in said
    assert len(manager.session.record.prices) == 2, "what it costs from there on"
    assert manager.session.record.replaced == 0, "no try was made but there"


def test_a_node_that_somebody_else_brought_back_gets_code_and_data_first(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = managed(played)
    played.unequipped = [NotReplaced("node3: data.path = data: no such folder")]
    monkeypatch.setattr(session.Pause, "is_over", True)
    played.script = {2: lambda: played.change(nodes=("node1", "node2"), attempt=2), 9: played.ends}
    manager.run()
    assert played.equipped == [("node3",)] * 2 and played.made == [] and played.job.nodes == NODES
    assert decisions(manager)[0] == "node3 cannot be used yet, tried again: node3: data.path = data: no such folder"
