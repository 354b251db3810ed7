"""What a rank writes of a run: a line of metrics for each step, checkpoints, the best model, and copies of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from training import beginning, manifest, metrics
from training.beginning import Beginning, Failed
from training.checkpoint import carried as carrying
from training.checkpoint import files as checkpoint
from training.checkpoint import state as states
from training.checkpoint.background import Saver
from training.checkpoint.together import Together
from training.data.token_set import TokenSet
from training.job import Job
from training.outer.clusters import Clusters
from training.parallel import agreement
from training.parallel.ranks import Ranks
from training.store.mirror import Mirror


class RunWriter:
    """Writes into the run directory, on the ranks that have one. The others take part in what needs all."""

    def __init__(
        self,
        job: Job,
        run: Path,
        ranks: Ranks,
        begun: Beginning,
        data: TokenSet,
        clusters: Clusters | None,
        *,
        shared: bool,
        resume: bool,
    ) -> None:
        """`clusters`: those that train together, whose state is part of a checkpoint. `shared`: all ranks have one run
        directory. `resume`: the mirror has checkpoints of this run."""
        self._job, self._run, self._ranks, self._data = job, run, ranks, data
        self._state, self._parallel, self._stepper = begun.state, begun.parallel, begun.stepper
        self._writes = ranks.is_first or (ranks.leads_node and not shared)
        self._mirror: Mirror | None = None
        if ranks.is_first and (url := job.mirror(run.resolve().name)):
            going_on = resume or self._state.step > 0
            self._mirror = Mirror(url, run, job.checkpoint.keep, resume=going_on, say=beginning.say)
        together = Together(ranks, shared) if self._parallel.calls_together else None
        self._saves = self._writes or together is not None
        self.saver = Saver(run, job.checkpoint.keep, self._mirror, together)
        self._clusters = clusters
        self._lines: metrics.Lines | None = None
        first, end = job.own_windows
        self._tokens = (end - first) * job.model.block_size  # that this cluster reads in a step

    def open(self, *, from_memory: bool) -> bool:
        """Open the metrics at the step that the run goes on from. `from_memory`: of an elastic job, whose last step may
        lack its line or its checkpoint. True if the line of that step is missing on all ranks. Collective."""
        step = self._state.step
        if self._writes:
            manifest.publish(self._run / "job.toml", self._job.to_toml())
            may_lack = from_memory and step == self._job.train.steps
            self._lines = metrics.Lines(self._run / "metrics.jsonl", step - may_lack)
        if self._ranks.is_first:
            self._stepper.accelerator.log_with = metrics.trackers(self._run)
            self._stepper.accelerator.init_trackers("trainyard")
        if from_memory:
            self.saver.verified = set(checkpoint.steps(self.saver.directory))
            return carrying.share_lines(self._lines, self._ranks) < step
        if step:
            self.saver.verified.add(step)
        return False

    def save(self, line: dict[str, Any], clock: metrics.Clock, *, due: bool, best: bool) -> None:
        """Write the step's line, a checkpoint if one is `due`, and the model if it is the `best`. The line is synced to
        disk before the checkpoint, so that a resumed run has the lines of all its steps. Failed, CheckpointError."""
        ready = None
        if due or best:
            with clock.time("checkpoint"):
                ready = self._capture(due=due)
        self._write(line, clock)
        if ready is not None and self._saves:
            with clock.time("checkpoint"):
                if self._lines is not None:
                    self._lines.sync()
                self.saver.save(*ready, step=self._state.step if due else None, best=best)

    def _capture(self, *, due: bool) -> tuple[checkpoint.Files, dict[str, Any]]:
        self._state.scaler = self._stepper.scaler_state()
        files, written = states.capture(self._state, self._parallel, self._ranks, self._data, to_resume=due)
        if due:
            if self._clusters is not None:
                files, written = {**files, **self._clusters.files()}, {**written, "outer": self._clusters.summary()}
            try:
                written["parameters"] = self._parallel.check_in_step(self._state.step)
            except agreement.DisagreementError as error:
                raise Failed(str(error)) from None
        return files, written

    def _write(self, line: dict[str, Any], clock: metrics.Clock) -> None:
        line |= {"seconds": clock.take(), "time": round(time.time(), 3)}
        if self._lines is not None:
            self._lines.write(line)
        if self._ranks.is_first:
            if metrics.is_tracked(line):
                self._stepper.accelerator.log(metrics.flat(line), step=self._state.step)
            print(metrics.progress(line, self._job.train.steps, self._tokens), flush=True)

    def finish(self) -> None:
        """Wait for the save in progress, and close the metrics. Raises Failed, on every rank, if a save has failed."""
        reason = ""
        try:
            self.saver.finish()
        except checkpoint.CheckpointError as error:
            reason = str(error)
        if failed := self._ranks.failures(reason):
            raise Failed(failed)
        self.close_lines()

    def close_lines(self) -> None:
        """Close the metrics and their trackers."""
        if self._lines is not None:
            self._lines.close()
        for tracker in self._stepper.accelerator.trackers:
            tracker.finish()

    def finish_mirror(self, beat: Callable[[], None], left: Callable[[], float]) -> None:
        """Wait until the mirror has the last checkpoint or has reported why not, at most for the seconds that are
        `left`. Only rank 0 has a mirror."""
        if self._mirror is not None:
            self._mirror.finish(beat, left)
