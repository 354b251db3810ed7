"""The worlds of an elastic job: who is in them after ranks are lost, started again, and lost while they join."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.inventory import Node
from node.job.diagnosis import GRACE, Diagnosis, Outcome
from node.job.elastic import Worlds

NODES = [Node(name=f"node{number}", private_ip=f"10.0.0.{number}", slots=1, cores_per_slot=1) for number in (1, 2, 3)]
ORDER = {"argv": ["train"], "environment": {"A": "1"}}


@dataclass
class SaidTo:
    """The words that a node's keeper was sent."""

    node: str
    complaint: str = ""
    words: list[str] = field(default_factory=list)

    def say(self, word: str) -> None:
        self.words.append(word)

    def cut(self) -> None:
        self.words.append("cut")

    def last(self, verb: str) -> Any:
        return json.loads([word for word in self.words if word.startswith(verb)][-1].partition(" ")[2])


class Story:
    """An attempt of three ranks that train."""

    def __init__(self, restarts: int = 2) -> None:
        self.now = 100.0
        self.watch = Diagnosis([node.name for node in NODES], 10.0, self.now, "")
        self.keepers = {node.name: SaidTo(node.name) for node in NODES}
        self.links: dict[str, Any] = dict(self.keepers)
        self.reached: list[SaidTo] = []
        self.log: list[str] = []
        addresses = {node.name: node.private_ip for node in NODES}
        self.kept: dict[str, Any] = {}
        keep = self.kept.update
        self.worlds = Worlds(addresses.__getitem__, self.watch, self.links, restarts, self.log.append, self.reach, keep)
        self.worlds.start(ORDER)
        for number in range(3):
            self.runs(number)

    def reach(self, node: str) -> SaidTo:
        self.reached.append(SaidTo(node))
        return self.reached[-1]

    def tell(self, number: int, **event: Any) -> None:
        self.watch.update(f"node{number + 1}", {"rank": number, **event}, self.now)

    def runs(self, number: int, phase: str = "train") -> None:
        self.tell(number, event="rank", state="running")
        self.tell(number, event="step", step=5, phase=phase, age=0.0)

    def ends(self, number: int, code: int) -> bool:
        """A rank ends; whether the job goes on."""
        self.tell(number, event="rank", state="exited", code=code, last="")
        self.now += GRACE + 0.1
        for node in self.links:
            self.watch.heard[node] = self.now
        verdict = self.watch.verdict(self.now)
        assert verdict is not None
        return self.worlds.go_on(verdict)

    def world(self) -> Any:
        """The newest world, the same on all nodes that are there."""
        told = [link.last("world") for link in self.links.values()]
        assert all(world == told[0] for world in told)
        return told[0]


def test_a_killed_rank_is_left_out_started_again_and_let_in() -> None:
    story = Story()
    assert story.ends(0, -signal.SIGKILL)
    assert story.world() | {"port": 0} == {
        **{"generation": 1, "places": [1, 2], "addresses": ["10.0.0.2", "10.0.0.3"], "port": 0, "lost": [0]}
    }
    again = story.keepers["node1"].last("start")
    assert (again["places"], again["environment"]) == ([0], {"A": "1", "TRAINYARD_JOINS": "1"})
    story.worlds.look()
    assert story.world()["generation"] == 1, "it is not ready yet"
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
    story.watch.cut_off("node3", "no word", story.now)
    verdict = story.watch.verdict(story.now + GRACE + 0.1)
    assert verdict and story.worlds.go_on(verdict)
    assert story.keepers["node3"].words[-1] == "cut" and story.worlds.unknown() == ["node3"]
    story.worlds.look()
    assert [each.node for each in story.reached] == ["node3"]
    assert story.worlds.heard("node3", None) and story.worlds.unknown() == ["node3"], "it did not answer"
    story.worlds._tried = 0.0
    story.worlds.look()
    assert story.worlds.heard("node3", {"event": "ready"}) and story.worlds.unknown() == []
    assert story.reached[-1].last("start")["places"] == [2]


def lost_node3(story: Story) -> None:
    story.now += 0.1
    story.watch.cut_off("node3", "no word", story.now)
    verdict = story.watch.verdict(story.now + GRACE + 0.1)
    assert verdict and story.worlds.go_on(verdict)
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


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["kill", "join", "load", "look"])), max_size=30))
def test_a_world_never_has_a_rank_that_is_dead(events: list[tuple[int, str]]) -> None:
    story = Story(restarts=100)
    alive, generation = {0, 1, 2}, 0
    for number, what in events:
        if what == "kill" and number in story.watch.present() and len(story.watch.present()) > 1:
            assert story.ends(number, -signal.SIGKILL)
            alive.discard(number)
        elif what in ("join", "load") and number in story.watch.away:
            story.runs(number, what)
            alive.add(number)
        story.worlds.look()
        if story.worlds._generation:
            world = story.world()
            assert set(world["places"]) <= alive and world["generation"] >= generation
            assert set(story.watch.present()) <= set(world["places"])
            generation = world["generation"]
