"""Nodes of an elastic job that their cloud is about to take: their ranks leave before, and that costs no restart."""

from __future__ import annotations

import signal

import pytest
from played_worlds import WHY, Story

from node.job.expiry import STOP


def left_node3(restarts: int = 2) -> Story:
    story = Story(restarts)
    assert story.announced("node3") == {"node3"}
    story.settles()
    story.exits(2)
    return story


def test_the_ranks_of_a_node_that_is_announced_leave_together_after_a_step_and_cost_no_restart() -> None:
    story = Story(restarts=0)
    story.announced("node3")
    assert story.world() | {"port": 0} == {
        **{"generation": 1, "places": [0, 1], "addresses": ["10.0.0.1", "10.0.0.2"], "port": 0, "lost": []},
        "leaving": [2],
    }
    story.worlds.look()
    assert story.kept["away"] == [], "a manager is not to replace it yet"
    assert story.announced("node3") == {"node3"} and story.world()["generation"] == 1, "told once"
    story.settles()
    story.exits(2)
    assert story.watch.present() == [0, 1] and story.kept == {"restarts_left": 0, "away": ["node3"]}
    assert story.log == [
        f"warning: node3: {WHY}; rank 2 to leave after this step, 2 go on",
        "node3: rank 2 left before it is taken; 2 ranks go on",
    ]
    assert story.keepers["node3"].words[-1].startswith("world"), "its keeper stays, and is not told to start anything"


def test_a_node_that_was_left_and_goes_is_no_loss_and_the_machine_in_its_place_joins() -> None:
    story = left_node3(restarts=0)
    story.gone("node3")
    assert story.log[-1] == "node3, which the job has left, is gone" and story.worlds.restarts == 0
    story.worlds.leave(story.now)
    story.worlds._tried = 0.0
    story.worlds.look()
    story.worlds.heard("node3", {"event": "ready"})
    assert story.reached[-1].last("start")["places"] == [2], "what was announced was the other machine's end"
    story.runs(2, "join")
    assert story.worlds.leave(story.now) == set()
    story.worlds.look()
    assert story.world()["places"] == [0, 1, 2] and story.world()["leaving"] == []


def test_a_node_whose_notice_is_withdrawn_joins_again() -> None:
    story = left_node3()
    story.beats(2, "join")  # its last heartbeat, which is still there
    story.worlds.look()
    assert story.world()["places"] == [0, 1] and story.keepers["node3"].last("start").get("places") is None
    story.expiry.withdraw("node3")
    story.worlds.leave(story.now)
    assert story.keepers["node3"].last("start")["places"] == [2]
    assert story.log[-1] == "node3 stays: its cloud has withdrawn that"
    story.beats(2, "join")
    story.worlds.look()
    assert story.world()["places"] == [0, 1], "this was still the last one's"
    story.runs(2, "join")
    story.worlds.look()
    assert story.world()["places"] == [0, 1, 2]


def test_a_notice_that_is_withdrawn_before_the_ranks_have_left_has_them_leave_and_join_again() -> None:
    story = Story()
    story.announced("node3")
    story.expiry.withdraw("node3")
    story.worlds.leave(story.now)
    assert story.world()["generation"] == 1 and story.watch.present() == [0, 1, 2]
    story.settles()
    story.exits(2)
    story.worlds.leave(story.now)
    assert story.keepers["node3"].last("start")["places"] == [2]


def test_two_nodes_that_are_announced_one_after_the_other_leave_so() -> None:
    """The second when all that go on are in the first's new world: else they would wait for each other in two."""
    story = Story()
    story.announced("node3")
    story.beats(0)
    assert story.announced("node2") == {"node2", "node3"}
    assert story.world()["generation"] == 1
    story.beats(1)
    story.worlds.leave(story.now)
    assert (story.world()["places"], story.world()["leaving"]) == ([0], [1, 2])
    story.exits(1)
    assert story.watch.present() == [0, 2], "they may end in any order"
    story.exits(2)
    assert story.watch.present() == [0] and story.worlds.restarts == 2


@pytest.mark.parametrize("nodes", [["node1"], ["node1", "node2", "node3"], ["node3", "node2", "node1"]])
def test_a_job_stops_for_the_node_with_its_files_and_when_all_are_announced(nodes: list[str]) -> None:
    story = Story()
    for node in nodes:
        story.expiry.known(node, story.now + 120.0, WHY)
    assert story.worlds.leave(story.now) == set() and story.worlds._generation == 0
    assert story.expiry.asked(story.now, print, story.worlds.leave(story.now)) == "stop"


def test_a_job_whose_first_node_is_announced_later_stops_for_that_one() -> None:
    story = left_node3()
    handled = story.announced("node1", 300.0 - 1.0)
    assert handled == {"node3"} and story.expiry.asked(story.now, print, handled) == "stop"
    assert story.expiry.reason == f"node1: {WHY}" and story.expiry.taken == {"node1", "node3"}


def test_the_end_of_a_nodes_hours_stops_the_job_as_it_does_any() -> None:
    story = Story()
    story.expiry.known("node3", story.now + 120.0)
    assert story.worlds.leave(story.now) == set() and story.expiry.asked(story.now, print) == "stop"


def test_an_announcement_long_ahead_waits() -> None:
    story = Story()
    assert story.announced("node3", STOP + 200.0) == {"node3"} and story.worlds._generation == 0
    assert story.expiry.asked(story.now, story.log.append, {"node3"}) == "" and not story.log
    story.worlds.leave(story.now + 201.0)
    assert story.world()["leaving"] == [2]


def test_an_announcement_while_a_loss_is_worked_on_waits_until_the_others_go_on() -> None:
    story = Story()
    story.tell(1, event="rank", state="exited", code=-signal.SIGKILL, last="")
    assert story.announced("node3") == {"node3"} and story.worlds._generation == 0, (
        "nobody has said yet that it is lost"
    )
    verdict = story.watch.verdict(story.now + 2.0)
    assert verdict and story.worlds.go_on(verdict)
    story.worlds.leave(story.now)
    assert (story.world()["places"], story.world()["leaving"]) == ([0, 2], [])
    story.settles()
    story.worlds.leave(story.now)
    assert (story.world()["places"], story.world()["leaving"]) == ([0], [2])


def test_a_rank_that_is_killed_before_it_has_left_is_lost_and_one_of_those_that_go_on_too() -> None:
    story = Story()
    story.announced("node3")
    assert story.ends(2, -signal.SIGKILL) and story.worlds.restarts == 1
    assert (story.world()["lost"], story.world()["leaving"]) == ([2], [])
    story = Story()
    story.announced("node3")
    assert story.ends(1, -signal.SIGKILL) and story.worlds.restarts == 1
    assert (story.world()["places"], story.world()["lost"], story.world()["leaving"]) == ([0], [1], [2])


def test_when_none_but_those_that_leave_are_left_the_attempt_has_failed() -> None:
    story = Story()
    story.announced("node3")
    assert story.ends(1, -signal.SIGKILL)
    assert not story.ends(0, -signal.SIGKILL), "the next one begins on node1, from the checkpoint"


def test_a_rank_that_waits_to_join_on_a_node_that_is_announced_is_not_waited_for() -> None:
    story = Story()
    assert story.ends(2, -signal.SIGKILL)
    story.runs(2, "join")
    assert story.announced("node3") == {"node3"}
    story.worlds.look()
    assert story.keepers["node3"].words[-1] == "kill 2" and story.world()["places"] == [0, 1]
    assert story.worlds.restarts == 1


def test_a_pods_keeper_is_ended_once_its_ranks_have_left() -> None:
    story = Story()
    story.worlds._in_pods = True
    story.announced("node2")
    story.exits(1)
    assert story.keepers["node2"].words[-1] == "end"
