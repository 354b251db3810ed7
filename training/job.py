"""A job: what to train, on what data, how. One TOML file, read into frozen dataclasses.

    python -m training.job check job.toml [section.key=value ...] [--ranks N] [--without-data]

Every problem is a JobError: one line that names section.key, the value and what is allowed. `check` prints it and exits
with 2, before any rank is started. Imports the standard library only, so it runs where torch is not installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from training.keys import JobError, at_least, fraction, key, known, not_negative, one_of, positive, section, text
from training.metrics import check_wandb
from training.models import ARCHITECTURES

if TYPE_CHECKING:
    from training.data.token_set import TokenSet

_MIRROR = re.compile(r"(none)?|(s3|abfs|file)://.*", re.DOTALL)
_NAME = re.compile(r"(?=.*[^.])[A-Za-z0-9_.-]+")


@dataclass(frozen=True, kw_only=True)
class DataSection:
    path: str = key("", "the folder of a token set, see training.data.prepare", bool)
    """The token set's folder, at the same path on every node."""
    source: str = text("", "stdlib; or files, folders, globs (here or on the head), hf:NAME[:CONFIG]")
    """The text that `fab prepare` makes the token set from; a folder on your machine is copied to the head node."""
    encoding: str = text("gpt2", "gpt2, another of tiktoken's encodings, or a .tiktoken rank file")
    """The vocabulary."""
    train_vocab: int = at_least(0, 0)
    """Above 0: train a byte-level BPE of this size on the source instead of using `encoding`."""
    text_key: str = key("text", "the name of a column", bool)
    """The column or key of the text in .jsonl, .parquet and hf: sources."""
    invalid: str = one_of("stop", "skip", "replace")
    """What to do with text that is not UTF-8; the source stdlib always skips it."""
    documents: str = one_of("whole", "lines")
    """What a document is: a file, row or line of JSON as a whole, or each line of its text that is not empty."""
    val_fraction: float = key(0.01, "a number from 0 to 0.5", lambda value: 0 <= value <= 0.5)
    """Share of the documents that is held out for validation; for the source stdlib 0.05."""


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    architecture: str = key("gpt2", " | ".join(ARCHITECTURES), lambda value: value in ARCHITECTURES)
    """Which model is trained: gpt2 continues a text, roberta fills masks."""
    n_layer: int = at_least(1, 12)
    """Transformer blocks."""
    n_head: int = at_least(1, 12)
    """Attention heads of a block; divides n_embd."""
    n_embd: int = at_least(1, 768)
    """Width of the residual stream."""
    block_size: int = at_least(2, 1024)
    """Tokens of context."""
    vocab_size: int = at_least(0, 0)
    """Size of the vocabulary; 0: the token set's, for roberta with its 8 tokens more."""
    dropout: float = fraction(0.0)
    """Probability with which an activation is dropped while training."""
    bias: bool = key(True, "true | false", lambda value: True)
    """Biases in the linear layers and norms, as GPT-2 has them; roberta always has them."""
    init_from: str = text("", "a folder with model.safetensors in Hugging Face's layout")
    """Start from these weights; empty: at random, by `train.seed`."""


@dataclass(frozen=True, kw_only=True)
class TrainSection:
    steps: int = at_least(1, 1000)
    """Optimizer steps in all."""
    global_batch_tokens: int = at_least(1, 98_304)
    """Tokens of one optimizer step over all ranks: the same for any number of nodes. For roberta with the places that
    stay empty as the next document does not fit."""
    micro_batch: int = at_least(1, 4)
    """Windows in one forward and backward pass of a rank; the gradients of its share are accumulated."""
    optimizer: str = one_of("adamw", "muon")
    """muon: Muon for the matrices of the blocks and AdamW for the rest; needs torch 2.9 (profile native)."""
    lr: float = positive(6e-4)
    """Learning rate after the warm-up."""
    schedule: str = one_of("cosine", "polynomial")
    """How the learning rate falls after the warm-up: a half cosine, or `power` of the share of steps that remains."""
    power: float = positive(1.0)
    """Of the polynomial schedule; 1: a straight line."""
    decay_steps: int = at_least(0, 0)
    """Steps of the whole schedule, warm-up included; 0: train.steps. More: the job is the beginning of a longer run."""
    muon_lr: float = positive(0.02)
    """Muon's learning rate after the warm-up; it falls with lr, in the same proportion."""
    min_lr: float = not_negative(6e-5)
    """Learning rate of the last step, where the schedule ends."""
    warmup: int = at_least(0, 0)
    """Steps in which the learning rate rises from 0 to lr."""
    weight_decay: float = not_negative(0.1)
    """Weight decay; on matrices only, not on biases and norms."""
    beta1: float = fraction(0.9)
    """AdamW: decay of the mean of the gradients."""
    beta2: float = fraction(0.95)
    """AdamW: decay of the mean of their squares."""
    epsilon: float = positive(1e-8)
    """AdamW: added to the root of the mean of their squares."""
    clip: float = not_negative(1.0)
    """Largest gradient norm; 0: no clipping."""
    eval_every: int = at_least(0, 0)
    """Steps between validations; 0: only after the last step."""
    eval_windows: int = at_least(1, 64)
    """Windows of the validation split that one validation reads, over all ranks."""
    seed: int = at_least(0, 1337)
    """Seed of the initial weights, the order of the data, the masks and the dropout."""
    precision: str = one_of("auto", "fp32", "bf16", "fp16")
    """Precision of the matmuls; auto: whichever is faster in a short measurement on the nodes."""
    compile: str = one_of("false", "auto", "true")
    """Compile the model with torch.compile; auto: if that is faster in a short measurement on the nodes."""
    threads: int = at_least(0, 0)
    """Threads of each rank (OMP_NUM_THREADS); 0: a node's cores divided among its ranks."""
    timeout: int = key(120, "seconds, from 1 to 120", lambda value: 1 <= value <= 120)
    """How long a rank waits for the others before the job fails."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSection:
    every: int = at_least(1, 50)
    """Steps between checkpoints; the last step always has one."""
    keep: int = at_least(2, 2)
    """How many verified checkpoints are kept; at least two, in case the newest is damaged."""
    mirror: str = key("", "none, or an s3://, abfs:// or file:// address", lambda value: bool(_MIRROR.fullmatch(value)))
    """Where checkpoints and the best model are copied to, in a folder with the run's name. Empty: the cluster's bucket,
    if it has one; none: nowhere."""


@dataclass(frozen=True, kw_only=True)
class RunSection:
    name: str = key("run", "letters, digits, '-', '_' and '.'", lambda value: bool(_NAME.fullmatch(value)))
    """Start of the job's id: `demo` becomes demo-1, demo-2, ..."""
    directory: str = text("")
    """Run directory; empty: $RUN_DIR, or runs/<name> if that is not set."""


@dataclass(frozen=True, kw_only=True)
class Job:
    data: DataSection
    model: ModelSection = ModelSection()
    train: TrainSection = TrainSection()
    checkpoint: CheckpointSection = CheckpointSection()
    run: RunSection = RunSection()

    def mirror(self, run: str) -> str:
        """The address of this run's mirror; empty: none."""
        url = self.checkpoint.mirror
        return f"{url.rstrip('/')}/{run}" if url not in ("", "none") else ""

    @property
    def windows(self) -> int:
        """Windows of one optimizer step, over all ranks."""
        return self.train.global_batch_tokens // self.model.block_size

    def to_toml(self) -> str:
        """The job as TOML, with every key, defaults included."""
        lines: list[str] = []
        for name, values in dataclasses.asdict(self).items():
            lines += [f"[{name}]", *(f"{item} = {json.dumps(value)}" for item, value in values.items()), ""]
        return "\n".join(lines)


_SECTIONS: dict[str, Any] = get_type_hints(Job)


def load(path: Path, overrides: Sequence[str] = ()) -> Job:
    """Read a job from a file and apply `section.key=value` overrides. Raises JobError."""
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise JobError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise JobError(f"{path}: not TOML: {error}") from None
    for override in overrides:
        _override(tables, override)
    known("", tables, list(_SECTIONS))
    job = Job(**{name: section(name, cls, tables.get(name, {})) for name, cls in _SECTIONS.items()})
    _check_together(job)
    return job


def share(windows: int, rank: int, ranks: int) -> tuple[int, int]:
    """The part [first, last) of a batch's windows that a rank trains on: contiguous, as even as possible."""
    return windows * rank // ranks, windows * (rank + 1) // ranks


def check_ranks(job: Job, ranks: int) -> None:
    """JobError if a rank would have no window of a step, and so no gradient to average."""
    if job.windows < ranks:
        raise JobError(
            f"train.global_batch_tokens = {job.train.global_batch_tokens}: {job.windows} windows of"
            f" {job.model.block_size} tokens for {ranks} ranks; allowed: at least {ranks * job.model.block_size}"
        )


def check_torch(job: Job) -> None:
    """JobError if the torch that is installed here is too old for train.optimizer; without torch nothing is checked."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return
    if job.train.optimizer == "muon" and tuple(map(int, version.split(".")[:2])) < (2, 9):
        raise JobError(f"train.optimizer = muon: needs torch 2.9 or newer, here is {version}; allowed here: adamw")


def open_data(job: Job) -> TokenSet:
    """The job's token set; JobError if it cannot be opened or does not fit the model. Needs numpy, unlike the rest."""
    from training.data import token_set

    path, model = job.data.path, job.model
    try:
        data = token_set.open(Path(path))
    except (OSError, ValueError) as error:
        raise JobError(f"data.path = {path}: {error}") from None
    if 0 < model.vocab_size < data.vocab_size:
        raise JobError(
            f"model.vocab_size = {model.vocab_size}: {path} has a vocabulary of {data.vocab_size};"
            f" allowed: 0 or at least {data.vocab_size}"
        )
    for split, count in (("train", len(data.train)), ("val", len(data.val))):
        if count <= model.block_size:
            raise JobError(
                f"model.block_size = {model.block_size}: the {split} split of {path} has {count} tokens;"
                f" allowed: at most {count - 1}"
            )
    return data


def _override(tables: dict[str, Any], override: str) -> None:
    where, equals, given = override.partition("=")
    table, dot, name = where.partition(".")
    if not (equals and dot and table and name):
        raise JobError(f"{override}: not an override; allowed: section.key=value, such as train.steps=100")
    known("", {table: None}, list(_SECTIONS))
    try:
        value = tomllib.loads(f"value = {given}")["value"]
    except tomllib.TOMLDecodeError:
        value = given  # a plain word, as data.path=/data/owt
    tables.setdefault(table, {})[name] = value


def _check_together(job: Job) -> None:
    """Check the rules that involve two keys."""
    model, train, block = job.model, job.train, job.model.block_size
    below = train.global_batch_tokens // block * block
    near = f"{below} or {below + block}" if below else str(block)
    batch = f"a multiple of model.block_size = {block}, such as {near}"
    schedule = ("train.decay_steps", train.decay_steps) if train.decay_steps else ("train.steps", train.steps)
    rules = (
        ("model.n_embd", model.n_embd % model.n_head == 0, f"a multiple of model.n_head = {model.n_head}"),
        ("train.global_batch_tokens", train.global_batch_tokens % block == 0, batch),
        ("train.min_lr", train.min_lr <= train.lr, f"at most train.lr = {train.lr}"),
        ("train.warmup", train.warmup < schedule[1] or not train.warmup, f"less than {schedule[0]} = {schedule[1]}"),
    )
    for name, holds, allowed in rules:
        if not holds:
            raise JobError(f"{name} = {attrgetter(name)(job)}; allowed: {allowed}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m training.job", description="Check a job before it is started.")
    parser.add_argument("command", choices=["check"])
    parser.add_argument("job", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--without-data", action="store_true", help="the token set is not on this machine")
    parser.add_argument("--wandb", action="store_true", help="the operator has a key of Weights & Biases")
    args = parser.parse_intermixed_args(argv)
    try:
        job = load(args.job, args.overrides)
        check_ranks(job, args.ranks)
        check_torch(job)
        if not args.without_data:
            open_data(job)
        if args.wandb:
            check_wandb()
    except JobError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    shares = [last - first for first, last in (share(job.windows, rank, args.ranks) for rank in range(args.ranks))]
    print(
        f"{job.run.name}: {job.train.steps} steps of {job.windows} windows of {job.model.block_size} tokens;"
        f" {args.ranks} {'rank' if args.ranks == 1 else 'ranks'} with {'+'.join(map(str, shares))} windows,"
        f" {job.train.micro_batch} at a time"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
