"""A manager's loop with an elastic job, which goes on by itself and takes new machines in."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from memory_backend import NODES
from played_manager import GONE, Played, decisions, managed

from fabfile.backends.base import JobState
from fabfile.managed import manager as managers
from fabfile.managed import session
from fabfile.managed.replacement import NotReplaced
from fabfile.managed.watch import Seen

pytest_plugins = ("played_manager",)


def test_an_elastic_job_is_neither_moved_nor_given_what_its_head_brings(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record says who is away; the attempt stays the same. So it is for a node with a full disk: there is no
    checkpoint to wait for."""
    manager = managed(played, elastic=True)
    monkeypatch.setattr("fabfile.managed.watch.PATIENCE", {"gone": 0.0, "disk": 0.0})

    def lost(name: str, state: str, disk: str = "") -> None:
        played.troubles[name] = Seen(name, state, GONE, disk=disk)
        played.change(away=(name,))

    played.script = {
        2: lambda: lost("node3", "gone"),
        6: lambda: played.change(away=()),
        8: lambda: lost("node2", "ready", "No space left on device"),
        12: lambda: played.change(away=()),
        15: played.ends,
    }
    assert manager.run().state == JobState.SUCCEEDED
    assert played.made == [("node3",), ("node2",)] and played.brought == [(), ()] and played.equipped == []
    assert [one for one in played.backend.orders if one["without"] is not None] == [] and played.job.attempt == 1
    said = decisions(manager)
    assert said[0] == f"to be replaced: node3: {GONE}"
    assert said[1] == "node3 replaced in 0 s, to join smoke-1"
    assert said[2] == said[5] == "smoke-1 trains on all 3 nodes again" and len(said) == 6
    assert manager.session.record.tries(1) == 2, "each is a try"


def test_a_node_whose_notice_runs_is_replaced_once_the_job_has_left_it(played: Played) -> None:
    """Not before: its ranks are about to end by themselves, between two steps."""
    manager = managed(played, elastic=True)
    why = "EC2 takes this Spot node at 12:03:05Z"
    made_before: list[int] = []

    def left() -> None:
        made_before.append(len(played.made))
        played.change(away=("node3",))

    played.script = {
        2: lambda: played.troubles.update(node3=Seen("node3", "ready", notice=why)),
        6: left,
        8: lambda: played.change(away=()),
        12: played.ends,
    }
    assert manager.run().state == JobState.SUCCEEDED
    assert made_before == [0] and played.made == [("node3",)] and played.equipped == []
    assert played.job.attempt == 1 and [one for one in played.backend.orders if one["without"] is not None] == []
    assert decisions(manager) == [
        f"to be replaced: node3: {why}",
        "node3 replaced in 0 s, to join smoke-1",
        "smoke-1 trains on all 3 nodes again",
    ]


def test_an_elastic_job_that_went_on_from_its_checkpoint_without_a_node_is_moved_back(played: Played) -> None:
    """As after a rank failed by itself, or when all ranks were lost: that attempt knows nothing of the missing node."""
    manager = managed(played, elastic=True)
    played.script = {2: lambda: played.lose("node3"), 8: played.ends}
    manager.run()
    assert played.made == played.equipped == [("node3",)] and played.job.nodes == NODES
    assert decisions(manager)[2] == "smoke-1 goes on on all 3 nodes again, from a checkpoint"


def test_the_head_learns_to_know_a_node_that_somebody_else_brought_back_under_an_elastic_job(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by `fab up` without `fab wait`, or by a manager that was killed; but not while its ranks are about to join."""
    manager = managed(played, elastic=True)
    monkeypatch.setattr(managers, "TO_JOIN", 0.0)
    played.unequipped = [NotReplaced("node3: cannot be joined to the others: timed out")]

    def equip(_stack: str, _facts: object, names: Collection[str], *_more: object) -> None:
        played.equipped.append(tuple(names))
        if played.unequipped:
            raise played.unequipped.pop()
        monkeypatch.setattr(managers, "TO_JOIN", 3600.0)

    monkeypatch.setattr(managers, "equip", equip)
    monkeypatch.setattr(session.Pause, "is_over", True)
    played.script = {2: lambda: played.change(away=("node3",)), 12: played.ends}
    manager.run()
    assert played.equipped == [(), ()] and played.made == [] and played.job.attempt == 1
    assert decisions(manager) == [
        "node3 cannot be used yet, tried again: node3: cannot be joined to the others: timed out",
        "node3: there, but not in smoke-1; all nodes know each other again",
    ]
