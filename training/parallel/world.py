"""The world of an elastic job: which of its ranks train together now.

Each rank has a *place*, the number that it was started with, and keeps it. The job's supervisor decides which places
the world has. When a rank is lost, or when one that was started in a lost one's place waits to join, it makes a new
generation of the world, which is written to a file on every node (node/job/keeper.py):

    {"generation": 2, "places": [0, 2], "addresses": ["10.0.0.1", "10.0.0.3"], "port": 21234, "lost": [1],
     "leaving": []}

A rank's number is the index of its place. Here a rank reads that file, and leaves a world whose collectives hang.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.keys import JobError

FILE = "TRAINYARD_WORLD"
"""The variable, set in an elastic job alone, with the path of the file."""
POLL = 0.1
"""Seconds between two looks at the file."""
LEAVE = 1.0
"""Seconds that a rank has to notice by itself that its world has lost a rank, before its connections are closed."""


class WorldChanged(Exception):
    """The supervisor has made a new world, with a rank more, or without one that leaves."""


class Leaves(Exception):
    """This rank's node is about to be taken: it ends here, and the others go on without it."""


@dataclass(frozen=True)
class Generation:
    """One generation of the world."""

    generation: int
    places: tuple[int, ...]
    addresses: tuple[str, ...]
    """Of the places' nodes; the first rank listens at the first one."""
    port: int
    lost: tuple[int, ...] = ()
    """Places of the generation before that are lost; empty: the ranks leave that one together, after a step."""
    leaving: tuple[int, ...] = ()
    """Places of the generation before whose ranks end, as their nodes are about to be taken."""


class World:
    """This rank's place, and the generation that it is in; 0 is that of the job's start."""

    def __init__(self, file: Path, place: int, *, waits: bool) -> None:
        self.file, self.place = file, place
        self.generation = 0
        self.waits = waits
        """Whether the environment says nothing of the next world: the rank was started in the place of a lost one, or
        it has been in a world already."""
        self.local_rank = "0"
        """As the environment has it at first; a rank that is alone removes it from there."""
        self._is_new = True
        """Whether it has not been in a world yet: what the file says of its place is then of the rank before it."""
        self._in_use = False
        """Whether this rank is in a process group, whose connections may have to be closed."""
        self._addresses: set[str] = set()
        threading.Thread(target=self._watch, name="world", daemon=True).start()

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> World:
        """The world of an elastic job, in whose environment FILE is. JobError for a place that is no number."""
        place = environment.get("TRAINYARD_PLACE", "")
        if not place.isdigit():
            raise JobError(f"TRAINYARD_PLACE = {place} in the environment; allowed: a whole number")
        nodes = json.loads(environment.get("TRAINYARD_NODES", "[]"))
        world = cls(Path(environment[FILE]), int(place), waits=environment.get("TRAINYARD_JOINS") == "1")
        world._addresses = {node["private_ip"] for node in nodes}
        world.local_rank = environment.get("LOCAL_RANK", "0")
        return world

    def newest(self) -> Generation | None:
        """What the file says; None: nothing yet."""
        try:
            found = json.loads(self.file.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        lists: dict[str, Any] = {name: tuple(found[name]) for name in ("places", "addresses", "lost", "leaving")}
        return Generation(**{**found, **lists})

    def is_newer(self) -> bool:
        """Whether there is a generation after this rank's own."""
        newest = self.newest()
        return newest is not None and newest.generation > self.generation

    def enter(self, beat: Callable[[], None], seconds: float) -> None:
        """Wait for a generation after this rank's own that has its place, and set the environment that
        training.parallel.ranks.join reads. Calls `beat` meanwhile; ConnectionError if none comes in so many seconds,
        Leaves if this rank is to end instead."""
        deadline = time.monotonic() + seconds
        while (newest := self._next()) is None:
            if self._is_to_leave():
                raise Leaves
            if time.monotonic() > deadline:
                raise ConnectionError(f"no new world with place {self.place} in {seconds:.0f} s")
            beat()
            time.sleep(POLL)
        self.generation = newest.generation
        rank, size = newest.places.index(self.place), len(newest.places)
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": self.local_rank}
        os.environ |= {"MASTER_ADDR": newest.addresses[0], "MASTER_PORT": str(newest.port)}
        self._addresses = set(newest.addresses)

    def _next(self) -> Generation | None:
        """A generation after this rank's own that has its place."""
        newest = self.newest()
        is_it = newest is not None and newest.generation > self.generation and self.place in newest.places
        return newest if is_it else None

    def _is_to_leave(self) -> bool:
        newest = None if self._is_new else self.newest()
        return newest is not None and newest.generation > self.generation and self.place in newest.leaving

    def entered(self) -> None:
        """The rank is in a process group: from now on its connections are closed if it hangs in there."""
        self._in_use = self.waits = True
        self._is_new = False

    def left(self) -> None:
        """The rank has left its process group."""
        self._in_use = False

    def _watch(self) -> None:
        """Close the connections of a generation that has lost a rank. A rank that was killed closes its own, and all
        others notice; but one on a machine that was cut off does not, and a collective would wait for its timeout."""
        since = 0.0
        while True:
            time.sleep(POLL)
            newest = self.newest() if self._in_use else None
            if newest is None or newest.generation <= self.generation or not newest.lost:
                since = 0.0
            elif not since:
                since = time.monotonic()
            elif time.monotonic() - since > LEAVE and self._in_use:
                _close_connections(self._addresses)
                since = 0.0


def _close_connections(addresses: set[str]) -> None:
    """End every TCP connection of this process with one of these addresses. A collective that waits for it fails then;
    gloo's own abort does not end one that another thread waits in."""
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError, ValueError):
            if not stat.S_ISSOCK(entry.stat().st_mode):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                if connection.type == socket.SOCK_STREAM and connection.getpeername()[0] in addresses:
                    connection.shutdown(socket.SHUT_RDWR)
