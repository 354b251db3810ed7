"""The worlds of an elastic job of three ranks, with keepers that are played."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from infra.inventory import Node
from node.job.diagnosis import GRACE, Diagnosis
from node.job.elastic import Worlds
from node.job.expiry import Expiry

NODES = [Node(name=f"node{number}", private_ip=f"10.0.0.{number}", slots=1, cores_per_slot=1) for number in (1, 2, 3)]
WHY = "EC2 takes this Spot node at 12:03:05Z"
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
        self.expiry = Expiry()
        more = (restarts, self.log.append, self.reach, keep, self.expiry, "node1")
        self.worlds = Worlds(addresses.__getitem__, self.watch, self.links, *more)
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
        self.beats(number, phase)

    def beats(self, number: int, phase: str = "train") -> None:
        self.tell(number, event="step", step=5, phase=phase, age=0.0, world=self.worlds._generation)

    def settles(self) -> None:
        """All ranks of the newest world enter it."""
        for number in self.worlds._newest:
            self.beats(number)

    def ends(self, number: int, code: int) -> bool:
        """A rank ends; whether the job goes on."""
        self.tell(number, event="rank", state="exited", code=code, last="")
        self.now += GRACE + 0.1
        for node in self.links:
            self.watch.heard[node] = self.now
        verdict = self.watch.verdict(self.now)
        assert verdict is not None
        goes_on = self.worlds.go_on(verdict)
        self.settles()
        return goes_on

    def announced(self, node: str, seconds: float = 120.0) -> set[str]:
        """A node's cloud takes it in so many seconds; returns the nodes for which the job need not stop."""
        self.expiry.known(node, self.now + seconds, WHY)
        return self.worlds.leave(self.now)

    def exits(self, number: int) -> None:
        """A rank that was told to leave has ended."""
        self.tell(number, event="rank", state="exited", code=0, last="")
        self.worlds.look()

    def gone(self, node: str) -> None:
        """The connection to a node's keeper ends, and the job goes on."""
        self.now += 0.1
        self.watch.cut_off(node, "no word", self.now)
        verdict = self.watch.verdict(self.now + GRACE + 0.1)
        assert verdict and self.worlds.go_on(verdict)
        self.settles()

    def world(self) -> Any:
        """The newest world, the same on all nodes that are there."""
        told = [link.last("world") for link in self.links.values()]
        assert all(world == told[0] for world in told)
        return told[0]
