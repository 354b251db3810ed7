"""The sum that decides whether a model is held whole by each rank or in shards: what training keeps of it from step to
step, against the memory of a rank.

7B in bf16 with AdamW needs 112 GB; 8 GPUs of 40 GB: fsdp, 14 GB each

Imports no torch, so that `fab train` shows it before a job starts (fabfile/job_file.py). The ranks make it again, with
the memory that they find (training/parallel/memory.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from training.keys import JobError
from training.models.counts import KNOWN, counts
from training.sections import ModelSection, TrainSection

VALUE = 4
"""Bytes of a parameter, a gradient or a moment: fp32 in every precision, which is that of the matmuls."""
ROOM = 0.7
"""Share of a rank's memory that parameters, gradients and moments may take; the rest is for what is not counted."""


@dataclass(frozen=True)
class Size:
    """What a model's training keeps from step to step, in values."""

    parameters: int
    trained: int
    """Parameters that are trained: each has a gradient and two moments of AdamW."""
    by_muon: int = 0
    """Those of them that Muon trains, with one moment."""

    @property
    def gradients(self) -> int:
        """Bytes of all gradients."""
        return VALUE * self.trained

    @property
    def needed(self) -> int:
        """Bytes of parameters, gradients and moments: 16 for each parameter that AdamW trains, 12 where Muon does.

        Left out is what depends on batch and moment: activations, copies in a lower precision (autocast's, or the
        gathered blocks of fsdp, two at a time), the logits' slice, the checkpoint's copy in the processor's memory
        (12 bytes a parameter there), buffers of the libraries. ROOM leaves space for it.
        """
        return VALUE * self.parameters + self.gradients + VALUE * (2 * self.trained - self.by_muon)


@dataclass(frozen=True)
class Plan:
    """How the model is spread over the ranks, and the sum that says so."""

    parallel: str
    """`ddp` (also for one rank) or `fsdp`."""
    size: Size
    ranks: int
    replicas: int
    """With fsdp: how many groups of ranks have the whole model among them."""
    memory: int
    """Bytes of the rank that has the fewest."""
    on_gpu: bool

    @property
    def shards(self) -> int:
        """How many parts each parameter is in."""
        return self.ranks // self.replicas if self.parallel == "fsdp" else 1

    @property
    def each(self) -> int:
        """Bytes that a rank needs."""
        return -(-self.size.needed // self.shards)

    @property
    def holds_gradients(self) -> bool:
        """With fsdp: whether a rank has room for whole gradients, so that those of a step's micro batches are added up
        on the rank, and sent once. If not, they are sent after each micro batch."""
        return self.each + self.size.gradients <= ROOM * self.memory

    def line(self, precision: str, optimizer: str) -> str:
        """The sum as text, for a precision and an optimizer by their names in a job."""
        name = {"adamw": "AdamW", "muon": "Muon"}[optimizer]
        what = f"{_count(self.size.parameters)} in {precision} with {name} needs {_gigabytes(self.size.needed)}"
        who = f"{self.ranks} {'GPU' if self.on_gpu else 'rank'}{'s' * (self.ranks > 1)} of {_gigabytes(self.memory)}"
        how = f"{self.parallel if self.ranks > 1 or self.shards > 1 else 'one rank'}, {_gigabytes(self.each)} each"
        if self.replicas > 1:
            how += f", in {self.replicas} replicas of {self.shards} shards"
        return f"{what}; {who}: {how}{', which is more than it has' if self.each > self.memory else ''}"


def size_of(architecture: str, shape: Any, optimizer: str) -> Size:
    """The size of a model, by what `counts` takes, for an optimizer by its name in a job."""
    model = counts(architecture, shape)
    return Size(model.parameters, model.trained, model.in_matrices if optimizer == "muon" else 0)


def expected(model: ModelSection, train: TrainSection, *, ranks: int, memory: int, on_gpu: bool) -> str:
    """The line of a job's plan, without its token set; empty if the vocabulary is that set's, if the `memory` of a rank
    is not known (0), or for a model without arithmetic. JobError as `plan`."""
    if not (model.vocab_size and memory and model.architecture in KNOWN):
        return ""
    made = plan(train, size_of(model.architecture, model, train.optimizer), ranks=ranks, memory=memory, on_gpu=on_gpu)
    return made.line("fp32 or bf16" if train.precision == "auto" else train.precision, train.optimizer)


def plan(train: TrainSection, size: Size, *, ranks: int, memory: int, on_gpu: bool) -> Plan:
    """How to train a model of this size on ranks that have `memory` bytes each. JobError for what cannot be.

    `auto` is ddp if the whole model fits into ROOM of a rank's memory, else fsdp. GPUs that have too little for the
    parameters, gradients and moments alone are refused; processors may have swap, and are only told.
    """
    parallel = train.parallel
    if parallel == "auto":
        fits = size.needed <= ROOM * memory or ranks == 1 or train.optimizer == "muon"
        parallel = "ddp" if fits and train.replicas == 1 else "fsdp"
    if parallel == "fsdp":
        _check_fsdp(train, ranks)
    made = Plan(parallel, size, ranks, train.replicas if parallel == "fsdp" else 1, memory, on_gpu)
    if on_gpu and made.each > memory:
        raise JobError(
            f"train.parallel = {train.parallel}: {made.line(train.precision, train.optimizer)}; {_more(made)}"
        )
    return made


def _check_fsdp(train: TrainSection, ranks: int) -> None:
    wrong = ""
    if train.optimizer == "muon":
        wrong = "train.optimizer = muon with fsdp: Muon needs whole matrices, and a rank has only rows of each;"
        wrong += " allowed with fsdp: adamw"
    elif train.compile == "true":
        wrong = (
            "train.compile = true with fsdp: the compiler does not see through fsdp's hooks; allowed with fsdp: false"
        )
    elif ranks % train.replicas:
        wrong = f"train.replicas = {train.replicas}; allowed for {ranks} ranks: a divisor of {ranks}"
    if wrong:
        raise JobError(wrong)


def _more(made: Plan) -> str:
    if made.parallel == "ddp":
        return "allowed: auto or fsdp, on more than one GPU"
    least = -(-made.size.needed * made.replicas // made.memory)
    return f"allowed: at least {least} GPUs of this size, or a smaller model"


def _count(parameters: int) -> str:
    """7B, 6.74B, 124M, 28.2K"""
    unit, letter = next((pair for pair in ((1e9, "B"), (1e6, "M")) if parameters >= pair[0]), (1e3, "K"))
    return f"{parameters / unit:.3g}{letter}"


def _gigabytes(size: int) -> str:
    """GB of 10^9 bytes, as the makers of GPUs and disks count; MB below one."""
    if size < 1e9:
        return f"{max(size, 1e5) / 1e6:.3g} MB"
    return f"{size / 1e9:.0f} GB" if size >= 10e9 else f"{size / 1e9:.2g} GB"
