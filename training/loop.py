"""The training loop: step, validate, save, until all steps are done or a stop is requested."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from training import beginning, compilation, manifest, metrics
from training import job as jobs
from training import optimizer as optimizers
from training.beginning import Failed
from training.checkpoint import carried as carrying
from training.checkpoint import files as checkpoint
from training.checkpoint import state as states
from training.checkpoint.background import Saver
from training.checkpoint.carried import Carried
from training.checkpoint.together import Together
from training.data import order, windows
from training.data.stream import client as stream
from training.job import Job
from training.outer import opening
from training.parallel import agreement
from training.parallel.ranks import Ranks, shares_disk_with_first
from training.parallel.world import World, WorldChanged
from training.progress import Heartbeat, Phase
from training.store.mirror import Mirror


class Stop(Protocol):
    """A request to end: `asked` is set from outside, `step` by the loop when it has ended."""

    asked: bool
    step: int


class Loop:
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
        """`resume`: if the run directory has no checkpoint, the newest is fetched from the run's mirror. `world`: of an
        elastic job. `carried`: what this rank has in memory from the world before this one."""
        self.job, self.run_directory, self.ranks, self.stop, self.world = job, run, ranks, stop, world
        run.mkdir(parents=True, exist_ok=True)
        self.heart = Heartbeat(run, world.place if world else ranks.rank, ranks.node)
        self._beat(0, "load")
        self.data = jobs.open_data(job)
        shared = shares_disk_with_first(ranks, run)
        self.writes = ranks.is_first or (ranks.leads_node and not shared)
        mirror_url = job.mirror(run.resolve().name)
        saved = carrying.newest(ranks, carried) if world and world.generation else None
        self.made: dict[str, Any] | None = saved.state["made"] if saved else None
        from_memory = saved is not None
        if saved is None:
            fetched = mirror_url if resume else ""
            saved = beginning.newest(run, ranks, shared, fetched, lambda: self._beat(0, "load"))
        with self.heart.kept(0, "load"):
            begun = beginning.begin(job, self.data, ranks, saved, quiet=from_memory)
        self.state, self.choice, self.parallel, self.stepper = begun.state, begun.choice, begun.parallel, begun.stepper
        self.windows = windows.of_splits(self.state.model, self.data)
        if job.data.stream:
            self.windows["train"] = stream.opened(job, self.data, self.state.stream, ranks, self._beat_train)
        self.cluster_first, end = job.own_windows
        self.own_windows = end - self.cluster_first
        self.first, self.last = jobs.share(self.own_windows, ranks.rank, ranks.size)
        self.compilation = self._choose_compilation()
        self.state.compile = self.compilation.name
        states.set_generators(self.state.rng, ranks.device, _seed(job, ranks.rank))
        self.clusters = opening.opened(job, run, begun, ranks, saved, self.data, self._beat_now, lambda: stop.asked)
        self.mirror = None
        if ranks.is_first and mirror_url:
            going_on = resume or self.state.step > 0
            self.mirror = Mirror(mirror_url, run, job.checkpoint.keep, resume=going_on, say=beginning.say)
        together = Together(ranks, shared) if self.parallel.calls_together else None
        self.saves = self.writes or together is not None
        self.saver = Saver(run, job.checkpoint.keep, self.mirror, together)
        self.clock = metrics.Clock()
        self.lines: metrics.Lines | None = None
        if self.writes:
            manifest.publish(run / "job.toml", job.to_toml())
            is_last = from_memory and self.state.step == job.train.steps  # its checkpoint may be missing
            self.lines = metrics.Lines(run / "metrics.jsonl", self.state.step - is_last)
        self.unfinished = False
        if from_memory:
            self.saver.verified = set(checkpoint.steps(self.saver.directory))
            self.unfinished = carrying.share_lines(self.lines, ranks) < self.state.step
        elif self.state.step:
            self.saver.verified.add(self.state.step)
        if ranks.is_first:
            again = f"going on from step {self.state.step}, in memory, on {ranks.size} ranks"
            print(again if from_memory else beginning.described(job, begun, ranks, self.compilation), flush=True)

    def run(self) -> bool:
        """Train until the last step (True) or until a stop is requested (False). Raises Failed, and WorldChanged if the
        ranks go on in a new world."""
        if self.ranks.is_first:
            self.stepper.accelerator.log_with = metrics.trackers(self.run_directory)
            self.stepper.accelerator.init_trackers("trainyard")
        stopping = self.clusters is not None and self.clusters.start()
        if self.unfinished:
            stopping = self._after_step()
        while self.state.step < self.job.train.steps and not stopping:
            moves = self._step()
            stopping = self._after_step()
            if moves and not stopping and self.state.step < self.job.train.steps:
                raise WorldChanged
        self._finish_saves()
        self._close_lines()
        self.stop.step = self.state.step
        return self.state.step >= self.job.train.steps

    def close(self) -> None:
        """Wait until the mirror has the last checkpoint or has reported why not. Only rank 0 has a mirror."""
        if self.mirror is not None:
            self.mirror.finish(lambda: self._beat(self.state.step, "save"))

    def _choose_compilation(self) -> compilation.CompileChoice:
        """Compile the model or not, as the job says or as a measurement shows; a resumed run does as before."""
        train, rows = self.job.train, self.last - self.first
        sizes = dict.fromkeys([min(train.micro_batch, rows), rows % train.micro_batch or min(train.micro_batch, rows)])
        shapes = [torch.zeros(size, self.windows["train"].width, dtype=torch.int64) for size in sizes]
        batches = [self._batch(windows, 0, 0) for windows in shapes]
        remaining = (train.steps - self.state.step) * math.ceil(rows / train.micro_batch)
        wanted, why = train.compile, "as the job says"
        if wanted == "auto" and (self.parallel.calls_together or train.recompute):
            wanted, why = "false", "not with fsdp, and not with train.recompute"
        elif wanted == "auto":
            wanted, why = self.state.compile, "as in the checkpoint"
        with self.heart.kept(self.state.step, "load"):
            return compilation.choose(wanted, why, self.stepper, batches, remaining, self.ranks.maximum)

    def _step(self) -> bool:
        """One optimizer step. The ranks exchange their losses before the update: a rank that has made it, and that may
        be the only one of a world that was lost, has the step's line, too. True if there is a new world to go to."""
        step = self.state.step + 1
        self._beat(step, "train")
        start = time.perf_counter()
        rate = optimizers.learning_rate(self.job.train, step)
        optimizers.set_learning_rate(self.state.optimizer, rate)
        with self.clock.time("data"):
            chosen = self.windows["train"].batch(self.job.windows, self.job.train.seed, step - 1)
            chosen = chosen[self.cluster_first : self.cluster_first + self.own_windows]
            own = torch.from_numpy(self.windows["train"].read(chosen[self.first : self.last]))
            targets = self._targets("train", chosen, step, self.cluster_first)
        loss = self._train(own, targets)
        facts = self._exchange(loss)
        if not math.isfinite(facts["loss"]):
            help_ = "a lower train.lr or train.precision = fp32 may help"
            raise Failed(f"step {step}: the loss is {facts['loss']}; {help_}")
        with self.clock.time("compute"):
            norm = self.stepper.update()
        self.state.step = step
        if self.job.data.stream:
            self.state.stream = stream.to_save(self.job, self.windows["train"].position)
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
        self._save(line, due=self._due(self.job.checkpoint.every, ended), best=improved)
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
        self.saver.finish()
        self._close_lines()
        if self.mirror is not None:
            self.mirror.finish(lambda: self._beat(self.state.step, "join"))
        self.state.scaler = self.stepper.scaler_state()
        return carrying.of(self.state, self.data, self.parallel, self.ranks.device, self.made)

    def _train(self, windows: Tensor, targets: int) -> Tensor:
        """The gradients of one step on this rank's windows. All targets of the global batch, `targets` in number, have
        the same weight. Returns this rank's part of the mean loss."""
        self.stepper.module.train()
        # The ranks' gradients are averaged, that is divided by `size`: multiply by it here.
        scale = self.ranks.size / targets
        loss = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
        with self.clock.time("compute"):
            pieces = self._micro_batches(len(windows), self.own_windows)
            for number, (start, end) in enumerate(pieces, 1):
                self._beat(self.state.step + 1, "train")  # a step of many micro batches exceeds the heartbeat timeout
                some = windows[start:end] if start < end else windows[:1]  # without one of its own: for the others only
                batch = self._batch(some, self.state.step + 1, self.cluster_first + self.first + start)
                weight = scale if start < end else 0.0
                loss += self.stepper.micro_step(batch, weight, last=number == len(pieces))
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
        values[3 + size + rank] = float(bool(self.saver.check()))
        with self.clock.time("communication"):
            values = self.ranks.sum(values)
        if values[3 + size :].any():
            raise Failed(self.ranks.failures(self.saver.check()))
        loss_sum, stop, moves = values[:3].tolist()
        return {"loss": loss_sum, "stop": stop, "moves": moves, "rank_seconds": values[3 : 3 + size].tolist()}

    def _line(self, rate: float, norm: float, facts: dict[str, Any], seconds: float) -> dict[str, Any]:
        done = self.state.model.flops_per_token() * (self.last - self.first) * self.job.model.block_size
        return {
            "step": self.state.step,
            "loss": facts["loss"],
            **({"perplexity": metrics.perplexity(facts["loss"])} if self.state.model.masked else {}),
            "lr": rate,
            "grad_norm": norm,
            "tokens": self.state.step * self.job.train.global_batch_tokens,
            "tokens_per_s": self.own_windows * self.job.model.block_size / seconds,
            "peak_share": done / seconds / self.choice.matmul_flops,
            "rank_seconds": [round(value, 4) for value in facts["rank_seconds"]],
        }

    def _validate(self, line: dict[str, Any]) -> bool:
        """Add the validation loss to the step's line; True when it is the lowest so far."""
        model, split = self.state.model, self.windows["val"]
        chosen = split.evaluation(self.job.train.eval_windows)
        first, last = jobs.share(len(chosen), self.ranks.rank, self.ranks.size)
        model.eval()
        total = torch.zeros(1, dtype=torch.float64)
        # Eager: a validation is too short to win back compiling it.
        with self.clock.time("eval"), torch.compiler.set_stance("force_eager"):
            for start, end in self._micro_batches(last - first, len(chosen)):
                self._beat(self.state.step, "eval")
                some = chosen[first + start : first + end] if start < end else chosen[:1]
                batch = self._batch(torch.from_numpy(split.read(some)), 0, first + start)
                with torch.no_grad():
                    loss = float(model(*batch))
                total += loss if start < end else 0.0
            line["val_loss"] = float(self.ranks.sum(total)) / self._targets("val", chosen, 0)
        line |= metrics.quality(line["val_loss"], model.masked, self.data.bytes_per_token("val"))
        improved = bool(line["val_loss"] < self.state.best)
        self.state.best = min(self.state.best, line["val_loss"])
        return improved

    def _save(self, line: dict[str, Any], *, due: bool, best: bool) -> None:
        """Write the step's line, and a checkpoint if one is due. The line is synced to disk before the checkpoint, so
        that a resumed run has the lines of all its steps."""
        ready = None
        if due or best:
            self._beat(self.state.step, "save")
            with self.clock.time("checkpoint"):
                ready = self._capture(due=due)
        self._write(line)
        if ready is not None and self.saves:
            with self.clock.time("checkpoint"):
                if self.lines is not None:
                    self.lines.sync()
                self.saver.save(*ready, step=self.state.step if due else None, best=best)

    def _capture(self, *, due: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        self.state.scaler = self.stepper.scaler_state()
        files, written = states.capture(self.state, self.parallel, self.ranks, self.data, to_resume=due)
        if due:
            if self.clusters is not None:
                files, written = files | self.clusters.files(), {**written, "outer": self.clusters.summary()}
            try:
                written["parameters"] = self.parallel.check_in_step(self.state.step)
            except agreement.DisagreementError as error:
                raise Failed(str(error)) from None
        return files, written

    def _write(self, line: dict[str, Any]) -> None:
        line |= {"seconds": self.clock.take(), "time": round(time.time(), 3)}
        if self.lines is not None:
            self.lines.write(line)
        if self.ranks.is_first:
            self.stepper.accelerator.log(metrics.flat(line), step=self.state.step)
            tokens = self.own_windows * self.job.model.block_size
            print(metrics.progress(line, self.job.train.steps, tokens), flush=True)

    def _close_lines(self) -> None:
        if self.lines is not None:
            self.lines.close()
        for tracker in self.stepper.accelerator.trackers:
            tracker.finish()

    def _finish_saves(self) -> None:
        reason = ""
        try:
            self.saver.finish()
        except checkpoint.CheckpointError as error:
            reason = str(error)
        if failed := self.ranks.failures(reason):
            raise Failed(failed)

    def _micro_batches(self, own: int, all_ranks: int) -> list[tuple[int, int]]:
        """How a rank's `own` windows are divided, of those that `all_ranks` have."""
        most = -(-all_ranks // self.ranks.size) if self.parallel.calls_together else own
        return jobs.micro_batches(own, self.job.train.micro_batch, most, even=self.parallel.calls_together)

    def _targets(self, split: str, chosen: Any, step: int, first: int = 0) -> int:
        """The number of targets in these windows, the first of which is number `first` of the step."""
        seeds = order.window_seeds(self.job.train.seed, step, first, len(chosen))
        return self.state.model.targets(self.windows[split].tokens(chosen), seeds)

    def _batch(self, windows: Tensor, step: int, first: int) -> tuple[Tensor, ...]:
        """The model's arguments for some windows of a step; `first` is the index of the first of them in the step."""
        seeds = order.window_seeds(self.job.train.seed, step, first, len(windows))
        batch = self.state.model.batch(windows, seeds)
        return tuple(part.to(self.ranks.device, non_blocking=True) for part in batch)

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
