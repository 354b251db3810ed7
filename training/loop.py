"""The training loop: step, validate, save, until all steps are done or a stop is requested."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from training import beginning, compilation, metrics
from training import job as jobs
from training import optimizer as optimizers
from training.batches import Batches
from training.beginning import Failed, FailsAgain
from training.checkpoint import carried as carrying
from training.checkpoint import state as states
from training.checkpoint.carried import Carried
from training.job import Job
from training.outer import opening
from training.parallel.ranks import Ranks, shares_disk_with_first
from training.parallel.world import World, WorldChanged
from training.progress import Heartbeat, Phase
from training.run_writer import RunWriter


class Stop(Protocol):
    """A request to end: `asked` is set from outside, `step` by the loop when it has ended."""

    asked: bool
    step: int

    def left(self) -> float:
        """Seconds until this process is killed; `inf` if nobody has said."""


class Loop:
    """One rank's training, from the newest checkpoint to the last step or to a stop."""

    def __init__(
        self,
        job: Job,
        run: Path,
        ranks: Ranks,
        stop: Stop,
        *,
        resume: bool = False,
        world: World | None = None,
        carried: Carried | None = None,
    ) -> None:
        """`resume`: a newer checkpoint than the nodes have is fetched from the run's mirror. `world`: of an
        elastic job. `carried`: what this rank has in memory from the world before this one."""
        self.job, self.run_directory, self.ranks, self.stop, self.world = job, run, ranks, stop, world
        run.mkdir(parents=True, exist_ok=True)
        place, generation = (world.place, world.generation) if world else (ranks.rank, 0)
        self.heart = Heartbeat(run, place, ranks.node, generation)
        self.clock = metrics.Clock()
        self._beat(0, "load")
        data = jobs.open_data(job)
        shared = shares_disk_with_first(ranks, run)
        saved = carrying.newest(ranks, carried) if world and world.generation else None
        self.made: dict[str, Any] | None = saved.state["made"] if saved else None
        from_memory = saved is not None
        if saved is None:
            saved = beginning.newest(job, run, ranks, shared, resume, lambda: self._beat(0, "load"))
        with self.heart.kept(0, "load"):
            begun = beginning.begin(job, data, ranks, saved, quiet=from_memory)
        self.state, self.choice, self.parallel, self.stepper = begun.state, begun.choice, begun.parallel, begun.stepper
        self.batches = Batches(job, self.state.model, data, ranks, even=self.parallel.calls_together)
        if job.data.stream:
            self.batches.open_stream(self.state.stream, self._beat_train)
        self.compilation = self._choose_compilation()
        self.state.compile = self.compilation.name
        states.set_generators(self.state.rng, ranks.device, _seed(job, ranks.rank))
        self.clusters = opening.opened(job, run, begun, ranks, saved, data, self._beat_now, lambda: stop.asked)
        self.writer = RunWriter(job, run, ranks, begun, data, self.clusters, shared=shared, resume=resume)
        if ranks.is_first:
            again = f"going on from step {self.state.step}, in memory, on {ranks.size} ranks"
            print(again if from_memory else beginning.described(job, begun, ranks, self.compilation), flush=True)
        self.unfinished = self.writer.open(from_memory=from_memory)
        """Whether what is due after the step that was carried here is still to be done."""

    def run(self) -> bool:
        """Train until the last step (True) or until a stop is requested (False). Raises Failed, and WorldChanged if the
        ranks go on in a new world."""
        stopping = self.clusters is not None and self.clusters.start()
        if self.unfinished:
            stopping = self._after_step()
        while self.state.step < self.job.train.steps and not stopping:
            moves = self._step()
            stopping = self._after_step()
            if moves and not stopping and self.state.step < self.job.train.steps:
                raise WorldChanged
        self.writer.finish()
        self.stop.step = self.state.step
        return self.state.step >= self.job.train.steps

    def close(self) -> None:
        """Wait until the mirror has the last checkpoint or has reported why not."""
        self.writer.finish_mirror(lambda: self._beat(self.state.step, "save"), self.stop.left)

    def _choose_compilation(self) -> compilation.CompileChoice:
        """Compile the model or not, as the job says or as a measurement shows; a resumed run does as before."""
        train = self.job.train
        samples, count = self.batches.samples()
        remaining = (train.steps - self.state.step) * count
        wanted, why = train.compile, "as the job says"
        if wanted == "auto" and (self.parallel.calls_together or train.recompute):
            wanted, why = "false", "not with fsdp, and not with train.recompute"
        elif wanted == "auto":
            wanted, why = self.state.compile, "as in the checkpoint"
        with self.heart.kept(self.state.step, "load"):
            return compilation.choose(wanted, why, self.stepper, samples, remaining, self.ranks.maximum)

    def _step(self) -> bool:
        """One optimizer step. The ranks exchange their losses before the update: a rank that has made it, and that may
        be the only one of a world that was lost, has the step's line, too. True if there is a new world to go to."""
        step = self.state.step + 1
        self._beat(step, "train")
        start = time.perf_counter()
        rate = optimizers.learning_rate(self.job.train, step)
        optimizers.set_learning_rate(self.state.optimizer, rate)
        with self.clock.time("data"):
            own, targets = self.batches.read(step)
        loss = self._train(own, targets)
        facts = self._exchange(loss)
        if not math.isfinite(facts["loss"]):
            help_ = "a lower train.lr or train.precision = fp32 may help"
            raise FailsAgain(f"step {step}: the loss is {facts['loss']}; {help_}")
        with self.clock.time("compute"):
            norm = self.stepper.update()
        self.state.step = step
        if self.job.data.stream:
            self.state.stream = self.batches.position()
        line = self._line(rate, norm, facts, time.perf_counter() - start)
        self.made = {"line": line, "stop": bool(facts["stop"])}
        return bool(facts["moves"])

    def _after_step(self) -> bool:
        """The validation and the checkpoint that are due after a step, and its line; True if a stop was requested."""
        assert self.made
        line, asked = self.made["line"], bool(self.made["stop"])
        stopping = self._meet_clusters(line) or asked
        ended = stopping or self.state.step == self.job.train.steps
        improved = self._validate(line) if self._due(self.job.train.eval_every, ended and not stopping) else False
        due = self._due(self.job.checkpoint.every, ended)
        if due or improved:
            self._beat(self.state.step, "save")
        self.writer.save(line, self.clock, due=due, best=improved)
        return stopping

    def _meet_clusters(self, line: dict[str, Any]) -> bool:
        """Exchange with the other clusters what is due after this step; True if a stop was requested while waiting for
        them. A cluster that was left behind goes on at a later step."""
        if self.clusters is None:
            return False
        with self.clock.time("exchange"):
            round_, stopping = self.clusters.after_step()
        line |= {"step": self.state.step, **({"outer": round_} if round_ else {})}
        return stopping

    def carry(self) -> Carried:
        """End what this loop has begun on this rank alone, and return what the next one goes on with. CheckpointError
        if a save has failed."""
        self.writer.saver.finish()
        self.writer.close_lines()
        self.writer.finish_mirror(lambda: self._beat(self.state.step, "join"), self.stop.left)
        self.state.scaler = self.stepper.scaler_state()
        return carrying.of(self.state, self.batches.data, self.parallel, self.ranks.device, self.made)

    def _train(self, windows: Tensor, targets: int) -> Tensor:
        """The gradients of one step on this rank's windows. All targets of the global batch, `targets` in number, have
        the same weight. Returns this rank's part of the mean loss."""
        self.stepper.module.train()
        # The ranks' gradients are averaged, that is divided by `size`: multiply by it here.
        scale = self.ranks.size / targets
        loss = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
        with self.clock.time("compute"):
            for batch, counts, last in self.batches.micro_batches(windows, self.state.step + 1):
                self._beat_train()  # a step of many micro batches exceeds the heartbeat timeout
                loss += self.stepper.micro_step(batch, scale if counts else 0.0, last=last)
            self.clock.move(self.parallel.waited(), "compute", "communication")
        return loss / self.ranks.size

    def _exchange(self, loss: Tensor) -> dict[str, Any]:
        """The only message of a step: sums the loss, stop requests, news of another world, failed saves and each rank's
        compute seconds over all ranks. Raises Failed, on every rank, if a save has failed."""
        size, rank = self.ranks.size, self.ranks.rank
        values = torch.zeros(3 + 2 * size, dtype=torch.float64)
        values[0], values[1] = float(loss), float(self.stop.asked)
        values[2] = float(self.world is not None and self.world.is_newer())
        values[3 + rank] = self.clock.seconds["compute"]
        values[3 + size + rank] = float(bool(self.writer.saver.check()))
        with self.clock.time("communication"):
            values = self.ranks.sum(values)
        if values[3 + size :].any():
            raise Failed(self.ranks.failures(self.writer.saver.check()))
        loss_sum, stop, moves = values[:3].tolist()
        return {"loss": loss_sum, "stop": stop, "moves": moves, "rank_seconds": values[3 : 3 + size].tolist()}

    def _line(self, rate: float, norm: float, facts: dict[str, Any], seconds: float) -> dict[str, Any]:
        done = self.state.model.flops_per_token() * self.batches.of_rank * self.job.model.block_size
        return {
            "step": self.state.step,
            "loss": facts["loss"],
            **({"perplexity": metrics.perplexity(facts["loss"])} if self.state.model.masked else {}),
            "lr": rate,
            "grad_norm": norm,
            "tokens": self.state.step * self.job.train.global_batch_tokens,
            "tokens_per_s": self.batches.tokens / seconds,
            "peak_share": done / seconds / self.choice.matmul_flops,
            "rank_seconds": [round(value, 4) for value in facts["rank_seconds"]],
        }

    def _validate(self, line: dict[str, Any]) -> bool:
        """Add the validation loss to the step's line; True when it is the lowest so far."""
        model = self.state.model
        model.eval()
        total = torch.zeros(1, dtype=torch.float64)
        # Eager: a validation is too short to win back compiling it.
        with self.clock.time("eval"), torch.compiler.set_stance("force_eager"):
            batches, targets = self.batches.validation()
            for batch, counts in batches:
                self._beat(self.state.step, "eval")
                with torch.no_grad():
                    loss = float(model(*batch))
                total += loss if counts else 0.0
            line["val_loss"] = float(self.ranks.sum(total)) / targets
        line |= metrics.quality(line["val_loss"], model.masked, self.batches.data.bytes_per_token("val"))
        improved = bool(line["val_loss"] < self.state.best)
        self.state.best = min(self.state.best, line["val_loss"])
        return improved

    def _due(self, every: int, ended: bool) -> bool:
        return ended or (every > 0 and self.state.step % every == 0)

    def _beat_now(self) -> None:
        self._beat(self.state.step, "train")

    def _beat_train(self) -> None:
        self._beat(self.state.step + 1, "train")

    def _beat(self, step: int, phase: Phase) -> None:
        self.heart.beat(step, phase)
        if self.ranks.peers is not None:
            self.ranks.peers.progress = f"step {step} ({phase})"


def _seed(job: Job, rank: int) -> int:
    """Of a rank's random generators, dropout's: another one for each rank of each cluster."""
    return job.train.seed + 1 + rank + (job.outer.cluster - 1) * 1_000_003
