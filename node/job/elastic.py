"""The worlds of an elastic job: which of its ranks train together, decided from what the keepers report.

When ranks are lost, those that are left get a new world at once (training/parallel/world.py says what they do then).
Lost ones are started again where their node answers, also on a new machine at its address, and get into the world when
they are ready to join it. A rank of the world that ends with an exit code of its own has failed, as in any job.

Ranks of a node that its cloud is about to take leave before that: the next world is without them, all leave the one
before together after a step, and so nothing is lost, and no restart is used up.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

from node import scope
from node.job.diagnosis import Diagnosis, Outcome
from node.job.expiry import STOP, Expiry
from node.job.keeper_connection import Event, Link
from node.job.new_machine import COPIES

AGAIN = 5.0
"""Seconds between two attempts to reach a node that was lost."""
LONGEST = 600.0
"""The most seconds before a rank that ends before it has joined is started once more."""
JOIN = "join"
"""The phase of a rank that waits for a new world."""


class Worlds:
    """The worlds of one attempt, from its start, when all ranks are in the first one."""

    def __init__(
        self,
        address: Callable[[str], str],
        watch: Diagnosis,
        links: MutableMapping[str, Link],
        restarts: int,
        say: Callable[[str], None],
        reach: Callable[[str], Link | None],
        keep: Callable[..., object],
        expiry: Expiry,
        first: str = "",
        in_pods: bool = False,
    ) -> None:
        """`address`: of a node, as it is now; a pod that is made again has another. `restarts`: how often ranks may be
        lost. `reach` starts a keeper on a node that was lost; None: not possible now. `keep` changes the job's
        record. `expiry`: which nodes are about to end. `first`: the node that the job cannot leave, as it has the job's
        files; empty: none. `in_pods`: Kubernetes has the nodes, and a pod that it ends does not stay."""
        self._address, self._keep = address, keep
        self._watch, self._links, self._say, self._reach = watch, links, say, reach
        self._expiry, self._first, self._in_pods = expiry, first, in_pods
        self.restarts = restarts
        self._generation = 0
        self._order: dict[str, Any] = {}
        self._lost_nodes: dict[str, Link | None] = {}
        """Nodes that were lost, each with the keeper that is being started there."""
        self._tried = 0.0
        self._invited: set[int] = set()
        """Places that the newest world has, and whose ranks have not joined it yet."""
        self._said: set[tuple[str, str]] = set()
        """Why lost nodes could not be reached, each said once."""
        self._ended: dict[int, int] = {}
        """How often a rank has ended before it joined."""
        self._kept: dict[str, Any] = {}
        self._leaving: set[int] = set()
        """Places of the world whose ranks were told to end, and have not yet."""
        self._left: set[int] = set()
        """Places whose ranks have ended so, or did not join; not started while their nodes' clouds want them."""
        self._newest: Sequence[int] = ()
        """The places of the newest world."""

    def start(self, order: Mapping[str, Any]) -> None:
        """Start all ranks: what they run and in which environment, as node/job/own_ranks.py takes it."""
        self._order = dict(order)
        for link in self._links.values():
            link.say(f"start {json.dumps(self._order)}")

    def go_on(self, verdict: Outcome) -> bool:
        """Whether the job goes on after this verdict, without the ranks that are lost."""
        watch = self._watch
        lost, failed = watch.lost_ranks(), watch.failed_ranks()
        gone = [node for node in watch.gone if node in self._links]
        left = [place for place in self._staying() if place not in lost]
        is_loss = bool(lost) or any(place not in self._left for node in gone for place in watch.places(node))
        if not (lost or gone) or failed or not left or (is_loss and self.restarts <= 0):
            return False
        if is_loss:
            self.restarts -= 1
            self._say(f"{verdict.reason}; {_ranks(left)} of {len(watch.ranks)} go on; {self.restarts} more may be lost")
        else:
            self._say(f"{', '.join(gone)}, which the job has left, is gone")
        for place in lost:
            if watch.ranks[place].node in self._links:
                self._links[watch.ranks[place].node].say(f"kill {place}")  # it may be stopped, or hang
        for node in gone:
            self._links.pop(node).cut()
            self._lost_nodes[node] = None
            self._left.difference_update(watch.places(node))
        self._leaving.difference_update(lost)
        waiting = [place for place in watch.away if watch.ranks[place].node in gone]  # they had yet to join
        unmet = self._invited.intersection(waiting)
        self._invited -= unmet
        watch.let_go([*lost, *waiting])
        if lost or unmet:
            self._publish([*left, *self._invited], [*lost, *unmet])
        self._start_again([place for place in lost if watch.ranks[place].node in self._links])
        return True

    def heard(self, node: str, event: Event | None) -> bool:
        """Whether an event is of a node that was lost: it is not the attempt's then."""
        if node not in self._lost_nodes:
            return False
        link = self._lost_nodes[node]
        if link is None:
            return True  # a last word of the lost keeper
        if event is None or event["event"] == "refused":
            self._say_why_not(node, event["reason"] if event else link.complaint)
            link.cut()
            self._lost_nodes[node] = None
        elif event["event"] == COPIES:
            self._say(f"{node} is a new machine: {event['folder']} is copied to it")
        elif event["event"] == "ready":
            del self._lost_nodes[node]
            self._links[node] = link
            self._watch.heard[node] = time.monotonic()
            self._expiry.withdraw(node)  # it is another machine, or its keeper says so again
            self._said = {each for each in self._said if each[0] != node}
            self._say(f"{node} is there again")
            self._start_again([place for place in self._watch.places(node) if place in self._watch.away])
        return True

    def leave(self, now: float) -> set[str]:
        """Have the ranks leave whose nodes are about to be taken, once all are in the newest world. Returns the nodes
        for whose announced ends the job need not stop."""
        watch, due = self._watch, self._expiry.announced(STOP, now)
        staying = [place for place in self._staying() if watch.ranks[place].node not in due]
        if self._first in due or not staying:
            return {node for node in due if watch.away.issuperset(watch.places(node))}
        going = [place for place in self._staying() if place not in staying]
        if going and self._is_settled():
            self._leaving.update(going)
            for node in dict.fromkeys(watch.ranks[place].node for place in going):
                what = _numbers([place for place in going if watch.ranks[place].node == node])
                self._say(f"warning: {node}: {due[node]}; {what} to leave after this step, {len(staying)} go on")
            self._publish(staying, [])
        self._left_out(due)
        return {node for node in self._expiry.announced() if node != self._first}

    def _left_out(self, due: Mapping[str, str]) -> None:
        """Do not wait for ranks that would join on nodes which are about to be taken, and start those again whose nodes
        are not any more."""
        watch = self._watch
        for place in watch.away - self._invited - self._left:
            if (node := watch.ranks[place].node) in due and node in self._links and watch.ranks[place].started:
                self._links[node].say(f"kill {place}")
                self._left.add(place)
        back = [place for place in self._left if watch.ranks[place].node not in due]
        for node in dict.fromkeys(watch.ranks[place].node for place in back):
            self._say(f"{node} stays: its cloud has withdrawn that")
        self._left.difference_update(back)
        for place in back:
            watch.again(place)
        self._start_again(back)

    def _staying(self) -> list[int]:
        """The ranks of the world that were not told to leave it."""
        return [place for place in self._watch.present() if place not in self._leaving]

    def _is_settled(self) -> bool:
        """Whether all ranks are in the newest world: only then another one may follow that they are to move to
        together. One that is lost has the others leave at once, wherever they are."""
        watch = self._watch
        return not watch.lost_ranks() and all(watch.ranks[place].world == self._generation for place in self._newest)

    def look(self) -> None:
        """Let ranks into the world that wait for it, try to reach nodes that were lost, and record who is away."""
        watch = self._watch
        for node in dict.fromkeys(watch.ranks[place].node for place in self._leaving):
            own = [place for place in self._leaving if watch.ranks[place].node == node]
            if all(watch.ranks[place].code == 0 for place in own):
                self._leaving.difference_update(own)
                self._left.update(own)
                watch.leave(own)
                self._say(f"{node}: {_numbers(own)} left before it is taken; {_ranks(watch.present())} go on")
                if self._in_pods:
                    self._links[node].say("end")
        for place in sorted(self._invited):
            if watch.ranks[place].phase not in ("", JOIN):
                self._invited.discard(place)
                watch.let_in(place)
                self._ended.pop(place, None)
                self._say(f"{watch.name(place)} has joined: {len(watch.present())} ranks")
        broken = [place for place in self._invited if watch.ranks[place].code is not None]
        if broken:
            self._invited -= set(broken)
            self._publish([*self._staying(), *self._invited], broken)
        ready = [place for place in watch.away - self._invited - self._left if watch.ranks[place].is_alive(JOIN)]
        if ready and not self._invited and self._is_settled():
            self._invited = set(ready)
            self._publish([*self._staying(), *ready], [])
        if time.monotonic() - self._tried > AGAIN:
            self._tried = time.monotonic()
            for node in [node for node, link in self._lost_nodes.items() if link is None]:
                self._lost_nodes[node] = self._reach(node)
        self._start_ended()
        away = sorted({watch.ranks[place].node for place in watch.away})
        if self._kept != (kept := {"restarts_left": self.restarts, "away": away}):
            self._kept = kept
            self._keep(**kept)

    def _start_ended(self) -> None:
        """Start ranks again that have ended before they joined: at first after AGAIN seconds, then later and later, as
        each that is let in and ends makes the others meet anew."""
        watch = self._watch
        for place in sorted(watch.away - self._invited - self._left):
            rank, times = watch.ranks[place], self._ended.get(place, 0)
            wait = min(LONGEST, AGAIN * 2**times)
            if rank.code is None or rank.node not in self._links or time.monotonic() - rank.ended < wait:
                continue
            self._ended[place] = times + 1
            self._say(f"{watch.name(place)} has ended before it joined: {rank.last or 'it was killed'}; started again")
            watch.again(place)
            self._start_again([place])

    def _say_why_not(self, node: str, why: str) -> None:
        if why and (node, why) not in self._said:
            self._said.add((node, why))
            self._say(f"{node} cannot join yet: {why}")

    def unknown(self) -> list[str]:
        """Nodes that were lost, so that it is not known what still runs there."""
        return sorted(self._lost_nodes)

    def close(self) -> None:
        """End what was begun on nodes that were lost."""
        for link in self._lost_nodes.values():
            if link is not None:
                link.cut()

    def _publish(self, places: Sequence[int], lost: Sequence[int]) -> None:
        """Tell all nodes the next generation of the world. Its port is on the first rank's node; if another program has
        it, the ranks do not meet, and the attempt fails."""
        self._generation += 1
        self._newest = there = sorted(places)
        nodes = [self._watch.ranks[place].node for place in there]
        world = {
            "generation": self._generation,
            "places": there,
            "addresses": [self._address(node) for node in nodes],
            "port": random.choice(scope.PORTS),
            "lost": sorted(lost),
            "leaving": sorted(self._leaving),
        }
        for link in self._links.values():
            link.say(f"world {json.dumps(world)}")

    def _start_again(self, places: Sequence[int]) -> None:
        """Start ranks in these places; they wait until a world has them."""
        environment = {**self._order["environment"], "TRAINYARD_JOINS": "1"}
        for node in {self._watch.ranks[place].node for place in places}:
            own = [place for place in places if self._watch.ranks[place].node == node]
            order = {**self._order, "environment": environment, "places": own}
            self._links[node].say(f"start {json.dumps(order)}")


def _ranks(places: Sequence[int]) -> str:
    return f"{len(places)} rank{'s' * (len(places) > 1)}"


def _numbers(places: Sequence[int]) -> str:
    return f"rank{'s' * (len(places) > 1)} {', '.join(map(str, sorted(places)))}"
