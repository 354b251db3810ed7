"""What the training loop calls when several clusters train together: after each step, and before the first one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training import manifest
from training.beginning import Failed, FailsAgain
from training.checkpoint.state import TrainingState
from training.job import Job
from training.keys import JobError
from training.outer import settings
from training.outer import state as outer_state
from training.outer.exchange import Exchange, Missed, Own, missed, named
from training.outer.rounds import Rounds
from training.outer.state import OuterState, Parts
from training.parallel.ranks import Ranks, run_on_first
from training.store.bucket import StoreError, open_folder, plain_errors

FILE = "outer.safetensors"
_POLL = 0.5  # seconds between two messages of the ranks while rank 0 waits


class Clusters:
    """The outer optimizer on every rank; rank 0 exchanges with the other clusters. All ranks call each method
    together."""

    def __init__(
        self,
        job: Job,
        state: TrainingState,
        ranks: Ranks,
        own: OuterState,
        *,
        run: Path,
        data: str,
        beat: Callable[[], None],
        stop: Callable[[], bool],
    ) -> None:
        """`own` is the outer state, from a checkpoint or the first one; `run` is the run directory, `data` identifies
        the token set, `beat` is called while waiting, `stop` says whether to stop waiting. JobError if the bucket
        cannot be opened, or has another job."""
        self.job, self.outer, self.ranks, self._state = job, job.outer, ranks, state
        self._beat, self._stop, self._run, self.state = beat, stop, run, own
        self.last = job.train.steps // self.outer.every
        """The number of the last round."""
        first, end = job.own_windows
        self._weight = end - first
        self._exchange: Exchange | None = None
        self._rounds: Rounds | None = None
        self._moved = (0, 0)
        if problem := self._on_first(lambda: self._open(data)):
            raise JobError(problem)

    def start(self) -> bool:
        """Before the first step: go on with an exchange that was under way, and catch up with the rounds that have
        ended without this cluster. Changes the training's step and parameters. True if a stop was requested."""
        if self._is_behind():
            self._catch_up(self.last - 1)
        elif self.state.sent is not None:
            self._begin()
            if self._state.step >= self._due():
                return self._finish() is None
        return False

    def after_step(self) -> tuple[dict[str, Any], bool]:
        """Begin the exchange of a round that ends with this step, or finish one. Returns what the step's line of
        metrics says of a round that was finished, and whether a stop was requested while waiting."""
        step = self._state.step
        if step % self.outer.every == 0:
            self.state.sent = outer_state.flat(self._state.model)
            self._begin()
        if self.state.sent is None or step < self._due():
            return {}, False
        done = self._finish()
        return done or {}, done is None

    def files(self) -> dict[str, dict[str, Tensor]]:
        """What a checkpoint keeps."""
        return {FILE: self.state.tensors()}

    def summary(self) -> dict[str, Any]:
        """What a checkpoint's state.json keeps."""
        return {"rounds": self.state.rounds, "cluster": self.outer.cluster, "clusters": self.outer.clusters}

    def _open(self, data: str) -> str:
        """Open the bucket, and compare the settings with the other clusters'; returns what is wrong."""
        try:
            place = open_folder(self.outer.exchange)
            with plain_errors(place.url):
                place.check()
                self._rounds = Rounds(place)
                differs = self._rounds.agree(settings.shared(self.job, data))
        except StoreError as error:
            return f"outer.exchange = {error}"
        return f"{differs}, as on the job's other clusters, which meet in {place.url}" if differs else ""

    def _on_first(self, work: Callable[[], str]) -> str:
        """Run `work` on rank 0 while the others wait; returns on all ranks what is wrong, or empty."""
        return run_on_first(self.ranks, work, self._beat).removeprefix(f"{self.ranks.name(0)}: ")

    def _due(self) -> int:
        """The step after which the next round's outer step is done."""
        number = self.state.rounds + 1
        return number * self.outer.every + (self.outer.overlap if number < self.last else 0)

    def _begin(self) -> None:
        """On rank 0, start to exchange the next round's differences. Failed, on every rank, if they are not finite."""
        assert self.state.sent is not None
        if not bool(torch.isfinite(self.state.sent).all()):
            raise FailsAgain(f"step {self._state.step}: a parameter is not finite; a lower train.lr may help")
        if self._rounds is None:
            return
        raw = self.state.difference(self.outer.bits)
        keep = self.state.rounds > 0 and self.state.rounds % self.outer.keep == 0
        state = self._packed_state if keep else None
        own = Own(self.state.rounds + 1, raw, self._weight, self.state.digest(), self._run.resolve().name, state)
        self._exchange = Exchange(self.outer, self._rounds, own, _say)

    def _finish(self) -> dict[str, Any] | None:
        """Wait for the exchange and do the outer step. Returns the facts of the round; None if a stop was requested
        while waiting, unless all steps are done: then the round ends with who is there."""
        began = time.perf_counter()
        if not self._waited():
            return None
        waited = time.perf_counter() - began
        if problem := self.ranks.failures(self._exchange.problem if self._exchange else ""):
            raise Failed(problem.removeprefix(f"{self.ranks.name(0)}: "))
        number, step = self.state.rounds + 1, self._state.step
        parts = self._shared(self._exchange.parts if self._exchange else None)
        if parts is None:
            self._catch_up(self.last if step >= self.job.train.steps else self.last - 1)
        else:
            self._apply(parts)
        return self._facts(number, sorted(parts or {}), waited)

    def _apply(self, parts: Parts) -> None:
        """Do the next round's outer step; what was trained since its differences were sent is kept."""
        sent, model = self.state.sent, self._state.model
        trained_on = None if sent is None else outer_state.flat(model).sub_(sent)
        self.state.apply(self.outer, parts, self.outer.cluster)
        overlaps = trained_on is not None and self._state.step > self.state.rounds * self.outer.every
        outer_state.fill(model, self.state.parameters + trained_on if overlaps else self.state.parameters)

    def _waited(self) -> bool:
        """Wait until rank 0's exchange has ended; False if a stop was requested before."""
        done_training = self._state.step >= self.job.train.steps
        pause, said = 0.0, False
        while True:
            ended = self._exchange is None or self._exchange.ended(pause)
            if self._exchange is None:
                time.sleep(pause)
            flags = self.ranks.sum(torch.tensor([float(not ended), float(self._stop())]))
            if not flags[0]:
                return True
            if flags[1] and not done_training:
                return False
            if flags[1] and self._exchange:
                self._exchange.hurry()
            others = [each for each in self._exchange.missing if each != self.outer.cluster] if self._exchange else []
            if others and pause and not said:
                names = " and ".join(named(self.outer, each) for each in others)
                _say(f"round {self.state.rounds + 1}: waiting for {names}, for up to {self.outer.wait} s")
                said = True
            self._beat()
            pause = _POLL

    def _is_behind(self) -> bool:
        """Whether the newest round that has ended has ended without this cluster, or the cluster has no checkpoint of
        what it has sent: from one, it would do the steps again, with the same result."""
        found: list[int] = []

        def look() -> str:
            assert self._rounds is not None
            with plain_errors(self.outer.exchange):
                newest = self._rounds.newest_closed()
                took_part = self.outer.cluster in (self._rounds.closed(newest) or []) and self._state.step > 0
                found.append(int(newest > self.state.rounds and not took_part))
            return ""

        if problem := self._on_first(look):
            raise Failed(problem)
        return bool(self.ranks.sum(torch.tensor([float(sum(found))])).item())

    def _catch_up(self, limit: int) -> None:
        """Do the outer steps of the rounds that have ended, up to this one. The training goes on after the last of
        them, with the parameters that it has made: what this cluster has trained since its last round is dropped."""
        before = self.state.rounds
        while self.state.rounds < limit and self._do_missed_round():
            pass
        self.state.sent = None
        outer_state.fill(self._state.model, self.state.parameters)
        self._state.step = self.state.rounds * self.outer.every
        if self.ranks.is_first and self.state.rounds > before:
            went = f"rounds {before + 1} to {self.state.rounds} have ended"
            _say(f"{went}: going on from what came of them, at step {self._state.step}")

    def _do_missed_round(self) -> bool:
        """Do the next round's outer step if it has ended, or take a later outer state if what was sent for it has been
        removed. False if it has not ended."""
        found = Missed()

        def look() -> str:
            assert self._rounds is not None
            with plain_errors(self.outer.exchange):
                nonlocal found
                found = missed(self._rounds, self.state.rounds + 1)
            return ""

        if problem := self._on_first(look):
            raise Failed(problem)
        if (parts := self._shared(found.parts)) is not None:
            self.state.apply(self.outer, parts, self.outer.cluster)
        elif number := int(self._broadcast(str(found.number).encode())):
            self._take_state(number, self._broadcast(found.state))
        else:
            return False
        return True

    def _packed_state(self) -> bytes:
        return b"".join(each.numpy().tobytes() for each in (self.state.parameters, self.state.momentum))

    def _take_state(self, number: int, raw: bytes) -> None:
        """Go on from the outer state after a round, as `_packed_state` of another cluster made it."""
        values = torch.from_numpy(np.frombuffer(bytearray(raw), dtype=np.float32))
        if len(values) != 2 * len(self.state.momentum):
            raise FailsAgain(f"{self.outer.exchange}: the state after round {number} is of another model")
        self.state.parameters, self.state.momentum = (each.clone() for each in values.chunk(2))
        self.state.rounds, self.state.sent = number, None

    def _shared(self, parts: Parts | None) -> Parts | None:
        """Rank 0's parts, on every rank."""
        about = [[each, weight, len(raw)] for each, (weight, raw) in (parts or {}).items()] if parts else None
        listed = json.loads(self._broadcast(json.dumps(about).encode()))
        if listed is None:
            return None
        return {each: (weight, self._broadcast(parts[each][1] if parts else b"")) for each, weight, _ in listed}

    def _broadcast(self, data: bytes) -> bytes:
        return self.ranks.broadcast_bytes(data, 0) if self.ranks.size > 1 else data

    def _note(self, runs: Mapping[int, str]) -> None:
        """Write down in the run directory who trains together: each cluster with its name and its run there."""
        names = self.outer.names.split(",") if self.outer.names else [""] * self.outer.clusters
        own = {self.outer.cluster: self._run.resolve().name}
        clusters = [
            {"cluster": number, "name": name, "run": {**runs, **own}.get(number, "")}
            for number, name in enumerate(names, 1)
        ]
        content = {"cluster": self.outer.cluster, "exchange": self.outer.exchange, "clusters": clusters}
        manifest.publish(self._run / "clusters.json", json.dumps(content, indent=1) + "\n")

    def _facts(self, number: int, clusters: list[int], waited: float) -> dict[str, Any]:
        """What the metrics say of a round, and a line of it. Bytes since the round before, on rank 0."""
        exchange, self._exchange = self._exchange, None
        if self._rounds is None or exchange is None:
            return {"round": number}
        self._note(exchange.runs)
        moved = self._rounds.sent, self._rounds.received
        sent, received = (now - before for now, before in zip(moved, self._moved, strict=True))
        self._moved = moved
        if clusters:
            took_part = " and ".join(named(self.outer, each) for each in clusters)
            _say(
                f"round {number} of {self.last}: {took_part}; {sent / 1e6:.2f} MB sent, {received / 1e6:.2f} MB"
                f" received, {waited:.1f} s waited"
            )
        return {"round": number, "clusters": clusters, "sent": sent, "received": received, "waited": round(waited, 3)}


def _say(line: str) -> None:
    print(line, flush=True)
