"""Turns the keepers' events into a verdict on an attempt: which rank or node ended it, and why.

Opens no connections and reads no clock: callers pass the time, in seconds of one monotonic clock.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from node.job import endings
from node.job.files import LEASE

GRACE = 1.5
"""Seconds from the first sign of a failure to the verdict, as a cause may be reported after its consequences."""
START = 300.0
"""Seconds that a rank has from its start to its first heartbeat, to load libraries from a cold disk and a checkpoint of
gigabytes."""
SLACK = 5.0
STOPPED = "stopped"
"""Start of the trainer's last line, or of our reason, if it ended because it was asked to, and not because it was done
just then."""
_CONSEQUENCES = (signal.SIGABRT, signal.SIGTERM, signal.SIGPIPE)
MPIRUN = 10.0
"""Seconds that mpirun and the ranks may end apart from each other."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended."""

    code: int
    """The job's exit code: 0 done, 1 failed, 2 bad input."""
    reason: str = ""
    """Why it failed; if it did not, the trainer's last line on rank 0."""
    program_code: int = 0
    """The exit code of the user's program that failed, 128 and its number for a signal; 0: not known."""
    cut_off: str = ""
    """The node that is blamed as it was cut off."""
    by_program: bool = False
    """Whether the rank that is blamed has failed by itself, and would again (node/job/endings.py)."""


@dataclass
class RankStatus:
    """What is known of one rank."""

    node: str
    started: float = 0.0
    """0: not started yet."""
    code: int | None = None
    """None: it has not ended. Negative: the signal that killed it."""
    ended: float = 0.0
    last: str = ""
    step: int = -1
    """-1: no heartbeat yet."""
    beat: float = 0.0
    phase: str = ""
    world: int = 0
    """The generation of the world of an elastic job that it is in."""
    stopped: bool = False
    lost: bool = False
    memory: str = ""
    """Set if it ended badly on a node that ran out of memory: the size of that memory, or "unknown"."""

    def is_alive(self, phase: str) -> bool:
        """Whether it runs, and is in this phase."""
        return self.started > 0 and self.code is None and self.phase == phase


@dataclass
class Diagnosis:
    """What is known of one attempt, updated by events, and the verdict that follows from it."""

    placement: list[str]
    """The node of each rank."""
    timeout: float
    """Seconds without a heartbeat after which a rank counts as hung."""
    began: float
    program: str = "mpirun"
    """The launcher's program, for messages; empty: there is none, as the keepers start the ranks."""
    is_users: bool = False
    """Whether the ranks run a user's program, of which only its processes are known until it beats, if ever."""
    is_stopping: bool = False
    """Whether the ranks were asked to end."""
    ranks: list[RankStatus] = field(default_factory=list)
    heard: dict[str, float] = field(default_factory=dict)
    """Node -> when its keeper last sent an event."""
    gone: dict[str, str] = field(default_factory=dict)
    """Node -> why its connection ended."""
    mpirun: int | None = None
    noise: str = ""
    """The last line that mpirun itself printed."""
    away: set[int] = field(default_factory=set)
    """Of an elastic job, the ranks that are not in its world now: what happens to them is no failure of it."""
    _first_sign: float = 0.0
    _mpirun_ended: float = 0.0

    def __post_init__(self) -> None:
        self.ranks = [RankStatus(node) for node in self.placement]
        self.heard = dict.fromkeys(self.placement, self.began)

    def update(self, node: str, event: Mapping[str, Any], now: float) -> None:
        """Take in an event from a node's keeper."""
        self.heard[node] = now
        kind = event["event"]
        if kind == "rank":
            self._rank(event["rank"], event, now)
        elif kind == "step":
            rank = self.ranks[event["rank"]]
            rank.step, rank.phase, rank.beat = event["step"], event["phase"], now - event["age"]
            rank.world = event.get("world", 0)
        elif kind == "stopped":
            self.ranks[event["rank"]].stopped = True
            self._sign_of(event["rank"], now)

    def cut_off(self, node: str, why: str, now: float) -> None:
        """Take in that the connection to a node's keeper has ended."""
        self.gone[node] = why
        self._sign(now)

    def mpirun_ended(self, code: int, now: float) -> None:
        """Take in that the launcher has ended; a negative code is the signal that killed it."""
        self.mpirun, self._mpirun_ended = code, now
        if code != 0:
            self._sign(now)

    def verdict(self, now: float) -> Outcome | None:
        """The verdict at this time; None while the attempt goes on."""
        for node, heard in self.heard.items():
            if now - heard > LEASE and node not in self.gone:
                self.cut_off(node, f"no word for {now - heard:.0f} s", now)
        if self.is_users and self.is_stopping and not self.gone:
            # A process that SIGTERM has ended is no failure: the others have the time that they were given.
            return Outcome(1, STOPPED) if all(rank.code is not None for rank in self.ranks) else None
        if self._first_sign and (now - self._first_sign > GRACE or self._is_all_known()):
            return self._blame()
        there = [self.ranks[number] for number in self.present()]
        if all(rank.code == 0 for rank in there):
            if self.program and self.mpirun is None and now - max(rank.ended for rank in there) < MPIRUN:
                return None
            # If mpirun does not end by itself, it is killed with its scope.
            return Outcome(0, "" if self.is_users else there[0].last)
        if self.mpirun == 0 and now - self._mpirun_ended > MPIRUN:
            return Outcome(1, f"{self.program} ended before the ranks did")
        return self._silent(now)

    def _is_all_known(self) -> bool:
        """Whether nothing more is to come. If all ranks are lost, something has ended them: the launcher's end may be
        heard of after theirs."""
        ended = all(self.ranks[number].code is not None for number in self.present())
        heard = self.mpirun is not None or not self.program
        return ended and (heard or not all(rank.lost for rank in self.ranks))

    def all_beat(self) -> bool:
        """Whether every rank has sent a heartbeat."""
        return all(self.ranks[number].step >= 0 for number in self.present())

    def present(self) -> list[int]:
        """The ranks that train together now: all, but of an elastic job those in its world."""
        return [number for number in range(len(self.ranks)) if number not in self.away]

    def places(self, node: str) -> list[int]:
        """The ranks of a node."""
        return [number for number, rank in enumerate(self.ranks) if rank.node == node]

    def lost_ranks(self) -> list[int]:
        """The ranks whose process or node something else has ended or stopped, of those that are not away already."""
        return [number for number in self.present() if self._is_lost(self.ranks[number])]

    def failed_ranks(self) -> list[int]:
        """The ranks that have ended with an exit code of their own that is not 0."""
        return [number for number in self.present() if (self.ranks[number].code or 0) > 0]

    def let_go(self, numbers: Collection[int]) -> None:
        """These ranks are lost to the world, and the nodes that are gone are not watched."""
        self.leave(numbers)
        for node in self.gone:
            self.heard.pop(node, None)
        self.gone.clear()
        self._first_sign = 0.0

    def leave(self, numbers: Collection[int]) -> None:
        """These ranks are not in the world any more."""
        self.away |= set(numbers)
        for number in numbers:
            self.again(number)

    def again(self, number: int) -> None:
        """This rank, which is away, is started once more."""
        self.ranks[number] = RankStatus(self.ranks[number].node)

    def let_in(self, number: int) -> None:
        """This rank is in the world again."""
        self.away.discard(number)

    def _is_lost(self, rank: RankStatus) -> bool:
        return rank.stopped or rank.lost or rank.node in self.gone or (rank.code or 0) < 0

    def can_stop(self) -> bool:
        """Whether there is something to stop: the trainer trains, or every process of a user's program was started."""
        return all(rank.started for rank in self.ranks) if self.is_users else self.all_beat()

    def alive(self) -> str:
        """Names of the ranks that have not ended."""
        return ", ".join(self.name(number) for number, rank in enumerate(self.ranks) if rank.code is None)

    def name(self, number: int) -> str:
        """`rank 1 on node2`."""
        return f"rank {number} on {self.ranks[number].node}"

    def _rank(self, number: int, event: Mapping[str, Any], now: float) -> None:
        rank = self.ranks[number]
        if event["state"] == "running":
            # What was heard since `again` was the heartbeat of the process before this one.
            rank.started, rank.beat, rank.step, rank.phase, rank.world = now, now, -1, "", 0
            return
        rank.lost = event["state"] == "lost"
        rank.memory = event.get("memory", "")
        rank.code, rank.last, rank.ended = event.get("code", -signal.SIGKILL), event.get("last", ""), now
        if rank.code != 0:
            self._sign_of(number, now)

    def _sign_of(self, number: int, now: float) -> None:
        if number not in self.away:
            self._sign(now)

    def _sign(self, now: float) -> None:
        self._first_sign = self._first_sign or now

    def _silent(self, now: float) -> Outcome | None:
        """The verdict if a rank's heartbeat has stopped. The others soon wait for a rank that hangs, so the one at the
        lowest step is blamed, and of several the one that fell silent first."""
        late = [
            (rank.step, rank.beat, number)
            for number, rank in enumerate(self.ranks)
            if rank.started and rank.code is None and number not in self.away and not (self.is_users and rank.step < 0)
            if now - rank.beat > (START if rank.step < 0 else self.timeout + SLACK)
        ]
        if not late:
            return None
        step, beat, number = min(late)
        where = f"after step {step} ({self.ranks[number].phase})" if step >= 0 else "before its first step"
        return Outcome(1, f"{self.name(number)} is silent for {now - beat:.0f} s, {where}")

    def _blame(self) -> Outcome:
        """The verdict on a failure. Ranks that were stopped, cut off or killed are blamed before ranks that exited with
        an error, which may have failed because of them."""
        for number, rank in enumerate(self.ranks):
            if rank.stopped and number not in self.away:
                return Outcome(1, f"{self.name(number)} is stopped (SIGSTOP, or a debugger)")
        if self.gone:
            node, why = next(iter(self.gone.items()))
            numbers = [str(number) for number, rank in enumerate(self.ranks) if rank.node == node]
            ranks = f" (rank {', '.join(numbers)})" if numbers else ""
            return Outcome(1, f"{node}{ranks} is cut off: {why}", cut_off=node)
        ended = sorted((self.ranks[number].ended, number) for number in self.present() if self.ranks[number].code)
        failed = [(number, self.ranks[number]) for _, number in ended]
        starved = [number for number, rank in failed if rank.memory]
        # A lost rank may have been killed by mpirun after another one failed.
        killed = [number for number, rank in failed if (rank.code or 0) < 0 and not rank.lost]
        if self.mpirun is not None and self.mpirun < 0 and not killed and not starved:
            return Outcome(1, f"{self.program} was killed by {signal_name(-self.mpirun)}")
        if not failed:
            return Outcome(1, f"{self.program} ended with exit code {self.mpirun}: {self.noise or 'no output'}")
        own = [number for number, rank in failed if rank.code in (endings.REFUSED, endings.FAULT) and not self.is_users]
        known = [number for number, rank in failed if not rank.lost]
        if self.is_users:  # it may end itself so when another one has failed
            killed = [number for number in killed if -(self.ranks[number].code or 0) not in _CONSEQUENCES]
        return self._blame_rank((starved or killed or own or known or [number for number, _ in failed])[0])

    def _blame_rank(self, number: int) -> Outcome:
        rank, name = self.ranks[number], self.name(number)
        code = rank.code or 0
        is_own = endings.is_own(code, starved=bool(rank.memory), is_users=self.is_users)
        if rank.memory:
            its = "memory" if rank.memory == "unknown" else f"its {rank.memory} of memory"
            killed = "was killed for it" if code < 0 else f"ended with exit code {code}"
            return Outcome(1, f"{rank.node} ran out of {its}: rank {number} {killed}", by_program=is_own)
        if rank.lost:
            return Outcome(1, f"{name} is gone, with the program that watched it")
        program_code = (code if code > 0 else 128 - code) if self.is_users else 0
        if code < 0:
            return Outcome(1, f"{name} was killed by {signal_name(-code)}", program_code, by_program=is_own)
        ended = f"{name} ended with exit code {code}: {rank.last or 'no output'}"
        if not self.is_users and rank.last.startswith("rank "):
            ended = rank.last  # all ranks agreed on this message; it names the rank that failed
        refused = code == endings.REFUSED and not self.is_users
        return Outcome(2 if refused else 1, ended, program_code, by_program=is_own)


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
