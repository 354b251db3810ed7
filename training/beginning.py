"""What is done before the first step: the plan of the memory, the newest checkpoint, the precision, the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from training import parallel as parallelism
from training import precision
from training.checkpoint import state as states
from training.checkpoint.state import Saved, TrainingState
from training.compilation import CompileChoice
from training.data.token_set import TokenSet
from training.job import Job
from training.models.base import Model
from training.parallel import Parallelism, memory, sums
from training.parallel.ranks import Ranks, run_on_first
from training.parallel.sums import Plan
from training.precision import PrecisionChoice
from training.stepper import Stepper
from training.store import mirror as mirrors


class Failed(RuntimeError):
    """An error that all ranks raise together, with the same one-line text. What has failed is a disk, the network or a
    store, unless it is a FailsAgain."""


class FailsAgain(Failed):
    """The same of training itself, such as a loss that is not finite: another attempt would end so again."""


@dataclass(frozen=True)
class Beginning:
    """What `begin` has made: all that the first step needs. Each rank has its own."""

    state: TrainingState
    choice: PrecisionChoice
    parallel: Parallelism
    stepper: Stepper


def begin(job: Job, data: TokenSet, ranks: Ranks, saved: Saved | None, *, quiet: bool = False) -> Beginning:
    """Choose how to train, make the model, and load the checkpoint, if there is one. Unless `quiet`,
    rank 0 prints the plan of the memory before the model is made. Collective. JobError."""
    outline = states.outline(job, data)
    wanted = saved.state["precision"] if saved and job.train.precision == "auto" else job.train.precision
    plan = _plan(job, outline, ranks)
    choice = precision.choose(wanted, outline, ranks.device, ranks.maximum)
    if ranks.is_first and not quiet:
        print(plan.line(choice.name, job.train.optimizer), flush=True)
    parallel = parallelism.choose(ranks, plan, job.train)
    if plan.parallel == "fsdp":
        state = states.fresh_sharded(job, data, parallel.shard, initialise=saved is None)
    else:
        state = states.fresh(job, data, ranks.device, initialise=saved is None)
    if saved:
        states.take(state, saved, data)
    state.precision = choice.name
    stepper = Stepper(job.train, state, parallel, choice.mixed)
    if saved:
        states.load(state, saved, ranks, parallel.shard)
    return Beginning(state, choice, parallel, stepper)


def _plan(job: Job, outline: Model, ranks: Ranks) -> Plan:
    size = memory.size_of(outline, job.train.optimizer)
    on_gpu = ranks.device.type == "cuda"
    return sums.plan(job.train, size, ranks=ranks.size, memory=memory.of_rank(ranks), on_gpu=on_gpu)


def newest(job: Job, run: Path, ranks: Ranks, shared: bool, resume: bool, beat: Callable[[], None]) -> Saved | None:
    """The newest whole checkpoint on any node or, with `resume`, in the run's mirror, from which rank 0 fetches a newer
    one. Raises Failed if the nodes have none and the mirror cannot be asked; if they have one, that is a warning."""
    have = states.newest_on_nodes(run, ranks, shared)
    mirror = job.mirror(run.resolve().name)
    if mirror and resume:
        fetched: list[str] = []
        wrong = run_on_first(ranks, lambda: mirrors.fetch(mirror, run, max(have), fetched), beat)
        if wrong and max(have) < 0:
            raise Failed(wrong)
        if wrong and ranks.is_first:
            say(f"warning: going on from step {max(have)}; whether the mirror has a newer one is not known: {wrong}")
        if ranks.sum(torch.tensor(float(len(fetched)))).item():
            have = states.newest_on_nodes(run, ranks, shared)
    elif mirror and ranks.is_first and max(have) < 0:
        mirrors.begin(run)
    return states.find(run, ranks, have)


def say(line: str) -> None:
    """Print a line of the log."""
    print(line, flush=True)


def described(job: Job, begun: Beginning, ranks: Ranks, compiled: CompileChoice) -> str:
    """The lines about a run that its log begins with."""
    state = begun.state
    millions = sum(p.numel() for p in state.model.parameters()) / 1e6
    lines = [
        f"{job.run.name}: {millions:.1f} M parameters, {ranks.size} rank(s) on {len(set(ranks.nodes))} node(s) over"
        f" {ranks.backend}, torch {torch.__version__}{' with IPEX' if begun.stepper.uses_ipex else ''},"
        f" {torch.get_num_threads()} threads a rank",
        str(begun.choice),
    ]
    if job.outer.exchange:
        first, last = job.own_windows
        share = f"{last - first} of a step's {job.windows} windows"
        lines.append(f"cluster {job.outer.cluster} of {job.outer.clusters}: {share}; they meet in {job.outer.exchange}")
    lines += [str(compiled)] if job.train.compile != "false" else []
    lines += [f"going on from step {state.step}, verified on disk"] if state.step else []
    return "\n".join(lines)
