"""Choose whether to compile the model with torch.compile, by timing both ways on the nodes.

Each rank times micro batches eager and compiled, in turns. All ranks do what is faster on the slowest of them.
Compiling takes a minute or more, so it is not even tried where the rest of the run could not win that back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed

from training.keys import JobError
from training.parallel.peers import plain
from training.stepper import Stepper

WORTH = 1.03
"""How many times as fast as eager the compiled model must be to be chosen."""
GAIN = 0.3
"""Share of a micro batch's time that compiling may save: some 0.3 on processors with AMX, less on others."""
COST = 60.0
"""Seconds of compiling that a run must be able to win back before it is tried."""


@dataclass(frozen=True)
class CompileChoice:
    """Whether the model is compiled, the same on all ranks, and why, for the log."""

    name: str
    """`true` or `false`, as train.compile has it."""
    why: str

    def __str__(self) -> str:
        return f"compile {self.name} ({self.why})"


def choose(
    wanted: str,
    why: str,
    stepper: Stepper,
    batches: Sequence[tuple[Tensor, ...]],
    remaining: int,
    maximum: Callable[[Tensor], Tensor],
) -> CompileChoice:
    """Choose, and compile the model if that is the choice. JobError if it must be compiled and cannot be here.

    `wanted` is auto, or what to do and `why`; `batches` are of each shape that this rank trains on, the usual one
    first; `remaining` is the number of micro batches that remain; `maximum` is the elementwise one over all ranks.
    Collective.
    """
    if wanted == "false":
        return CompileChoice(wanted, why)
    if wanted == "true":
        stepper.compile()
        try:
            for batch in batches:  # now, not in the first step, which must not take longer than a heartbeat may be late
                _seconds(stepper, batch)
        except BackendCompilerFailed as error:
            wrong = f"train.compile = true ({why}): this rank cannot compile the model: {plain(error)}"
            raise JobError(f"{wrong}; allowed here: false") from error
        return CompileChoice(wanted, why)
    _seconds(stepper, batches[0])  # the first run sets up kernels and memory
    eager = float(maximum(torch.tensor([_seconds(stepper, batches[0])])))
    if eager * remaining * GAIN < COST:
        return CompileChoice("false", f"{eager * remaining:.0f} s of micro batches remain, too few to win back a trial")
    try:
        stepper.compile()
        began = time.perf_counter()
        for batch in batches:
            _seconds(stepper, batch)
        took = time.perf_counter() - began
        times = _in_turns(stepper, batches[0])
    except Exception as error:  # noqa: BLE001 (of the compiler, in any form: the job runs without it, and says why)
        print(f"this rank cannot compile the model: {plain(error)}", flush=True)
        times, took = [eager, float("inf")], 0.0
    eager, compiled, took = maximum(torch.tensor([*times, took], dtype=torch.float64)).tolist()
    if eager > compiled * WORTH:
        return CompileChoice("true", f"measured on the slowest rank: {_both(eager, compiled)}, {took:.0f} s to compile")
    torch.compiler.set_stance("force_eager")
    if compiled == float("inf"):
        return CompileChoice("false", "the log of the rank that cannot compile it says why")
    return CompileChoice("false", f"measured on the slowest rank: {_both(eager, compiled)}")


def _both(eager: float, compiled: float) -> str:
    return f"a micro batch takes {1000 * eager:.0f} ms, compiled {1000 * compiled:.0f} ms"


def _in_turns(stepper: Stepper, batch: tuple[Tensor, ...]) -> list[float]:
    """The shortest of three times of a micro batch, eager and compiled."""
    best = [float("inf")] * 2
    for _ in range(3):
        for way, stance in enumerate(("force_eager", "default")):
            with torch.compiler.set_stance(stance):
                best[way] = min(best[way], _seconds(stepper, batch))
    return best


def _seconds(stepper: Stepper, batch: tuple[Tensor, ...]) -> float:
    """Seconds of a micro batch, forward and backward; its gradients are dropped."""
    start = time.perf_counter()
    float(stepper.micro_step(batch, 0.0, last=False))  # float: wait for a GPU
    stepper.optimizer.zero_grad()
    return time.perf_counter() - start
