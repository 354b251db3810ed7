"""The worlds of an elastic job: who is in them after ranks are lost, started again, and lost while they join."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from played_worlds import Story

from node.job.diagnosis import Outcome


def test_a_killed_rank_is_left_out_started_again_and_let_in() -> None:
    story = Story()
    assert story.ends(0, -signal.SIGKILL)
    assert story.world() | {"port": 0} == {
        **{"generation": 1, "places": [1, 2], "addresses": ["10.0.0.2", "10.0.0.3"], "port": 0, "lost": [0]},
        "leaving": [],
    }
    again = story.keepers["node1"].last("start")
    assert (again["places"], again["environment"]) == ([0], {"A": "1", "TRAINYARD_JOINS": "1"})
    story.worlds.look()
    assert story.world()["generation"] == 1, "it is not ready yet"
    story.settles()
    story.runs(0, "join")
    story.worlds.look()
    assert (story.world()["generation"], story.world()["places"], story.world()["lost"]) == (2, [0, 1, 2], [])
    assert story.watch.present() == [1, 2], "until it has joined"
    story.runs(0, "load")
    story.worlds.look()
    assert story.watch.present() == [0, 1, 2] and story.log[-1] == "rank 0 on node1 has joined: 3 ranks"


def test_the_job_is_over_when_those_that_train_are_done() -> None:
    story = Story()
    assert story.ends(1, -signal.SIGKILL)
    for number in (0, 2):
        story.tell(number, event="rank", state="exited", code=0, last="done")
    assert story.watch.verdict(story.now) == Outcome(0, "done")


def test_a_rank_with_an_exit_code_of_its_own_has_failed() -> None:
    assert not Story().ends(1, 1)
    assert not Story(restarts=0).ends(1, -signal.SIGKILL)


def test_one_that_ends_before_it_has_joined_is_left_out_again() -> None:
    story = Story()
    assert story.ends(2, -signal.SIGKILL)
    story.runs(2, "join")
    story.worlds.look()
    assert story.world()["places"] == [0, 1, 2]
    story.tell(2, event="rank", state="exited", code=1, last="")
    story.worlds.look()
    assert (story.world()["places"], story.world()["lost"]) == ([0, 1], [2])


def test_a_node_that_was_cut_off_is_reached_again() -> None:
    story = Story()
    story.gone("node3")
    assert story.keepers["node3"].words[-1] == "cut" and story.worlds.unknown() == ["node3"]
    story.worlds.look()
    assert [each.node for each in story.reached] == ["node3"]
    assert story.worlds.heard("node3", None) and story.worlds.unknown() == ["node3"], "it did not answer"
    story.worlds._tried = 0.0
    story.worlds.look()
    assert story.worlds.heard("node3", {"event": "ready"}) and story.worlds.unknown() == []
    assert story.reached[-1].last("start")["places"] == [2]


def lost_node3(story: Story) -> None:
    story.gone("node3")
    story.worlds._tried = 0.0
    story.worlds.look()


def test_a_new_machine_gets_what_it_lacks_and_why_it_is_not_there_yet_is_said_once() -> None:
    story = Story()
    lost_node3(story)
    assert story.kept == {"restarts_left": 1, "away": ["node3"]}
    for _ in range(2):
        story.reached[-1].complaint = "Host key verification failed."
        story.worlds.heard("node3", None)
        story.worlds._tried = 0.0
        story.worlds.look()
    story.worlds.heard("node3", {"event": "copies", "folder": "/data/smoke"})
    story.worlds.heard("node3", {"event": "ready"})
    assert story.log[1:] == [
        "node3 cannot join yet: Host key verification failed.",
        "node3 is a new machine: /data/smoke is copied to it",
        "node3 is there again",
    ]
    for phase in ("join", "load"):
        story.runs(2, phase)
        story.worlds.look()
    assert story.kept["away"] == []


@pytest.mark.parametrize("is_invited", [False, True])
def test_a_node_that_is_lost_again_before_its_rank_has_joined_ends_nothing(is_invited: bool) -> None:
    story = Story()
    lost_node3(story)
    story.worlds.heard("node3", {"event": "ready"})
    story.runs(2, "join")
    if is_invited:
        story.worlds.look()
        assert story.world()["places"] == [0, 1, 2]
    lost_node3(story)
    story.worlds.look()
    assert story.world()["places"] == [0, 1] and story.world()["lost"] == [2]
    assert story.worlds.unknown() == ["node3"] and story.watch.present() == [0, 1] and story.worlds.restarts == 0


def test_a_rank_that_ends_before_it_has_joined_is_started_again_later_and_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = Story()
    monkeypatch.setattr("node.job.elastic.time.monotonic", lambda: story.now)
    assert story.ends(2, -signal.SIGKILL)
    keeper, starts = story.keepers["node3"], []
    for wait in (5.0, 10.0, 20.0):
        story.tell(2, event="rank", state="running")
        story.tell(2, event="rank", state="exited", code=1, last="error: no data")
        for seconds in (wait - 0.1, 0.2):
            story.now += seconds
            story.worlds.look()
            starts.append(sum(word.startswith("start") for word in keeper.words))
    assert starts == [2, 3, 3, 4, 4, 5], "the first two are the job's start, and the one after its loss"
    assert story.log[-1] == "rank 2 on node3 has ended before it joined: error: no data; started again"
    assert story.worlds.restarts == 1, "that is no loss of the job's"


WHAT = ["kill", "join", "load", "look", "settle", "announce", "withdraw", "exit"]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(WHAT)), max_size=40))
def test_a_world_never_has_a_rank_that_is_dead_or_leaves(events: list[tuple[int, str]]) -> None:
    story = Story(restarts=100)
    alive, generation = {0, 1, 2}, 0
    for number, what in events:
        present, leaving = story.watch.present(), set(story.worlds._leaving)
        if what == "kill" and number in present and {*present} - leaving - {number}:
            assert story.ends(number, -signal.SIGKILL)
            alive.discard(number)
        elif what in ("join", "load") and number in story.watch.away - story.worlds._left:
            story.runs(number, what)
            alive.add(number)
        elif what == "settle":
            story.settles()
        elif what == "announce":
            story.announced(f"node{number + 1}")
        elif what == "withdraw":
            story.expiry.withdraw(f"node{number + 1}")
        elif what == "exit" and number in leaving:
            story.exits(number)
            alive.discard(number)
        story.worlds.leave(story.now)
        story.worlds.look()
        if story.worlds._generation:
            world = story.world()
            assert set(world["places"]) <= alive and world["generation"] >= generation and world["places"]
            assert not set(world["places"]) & set(world["leaving"])
            assert set(story.watch.present()) <= {*world["places"], *story.worlds._leaving}
            generation = world["generation"]
