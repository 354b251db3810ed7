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
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from training.keys import JobError, known, section
from training.manifest import STREAM
from training.metrics import check_wandb
from training.models import ARCHITECTURES, WHOLE_DOCUMENTS
from training.sections import CheckpointSection, DataSection, ModelSection, OuterSection, RunSection, TrainSection

if TYPE_CHECKING:
    from training.data.token_set import TokenSet


@dataclass(frozen=True, kw_only=True)
class Job:
    """A whole job, checked by `load`. Each field is a section of the file; only [data] has to be there."""

    data: DataSection
    model: ModelSection = field(default_factory=ModelSection)
    train: TrainSection = field(default_factory=TrainSection)
    outer: OuterSection = field(default_factory=OuterSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    run: RunSection = field(default_factory=RunSection)

    def mirror(self, run: str) -> str:
        """The address of this run's mirror; empty: none."""
        url = self.checkpoint.mirror
        return f"{url.rstrip('/')}/{run}" if url not in ("", "none") else ""

    @property
    def windows(self) -> int:
        """Windows of one optimizer step, over all ranks of all clusters."""
        return self.train.global_batch_tokens // self.model.block_size

    @property
    def own_windows(self) -> tuple[int, int]:
        """The windows [first, last) of a step that this cluster trains on; all, unless several train together."""
        outer = self.outer
        shares = [int(each) for each in outer.shares.split(",")] if outer.shares else [1] * outer.clusters
        before, total = sum(shares[: outer.cluster - 1]), sum(shares)
        return self.windows * before // total, self.windows * (before + shares[outer.cluster - 1]) // total

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


def micro_batches(windows: int, most: int, of_any_rank: int, *, even: bool) -> list[tuple[int, int]]:
    """The parts [first, last) of a rank's windows that are one micro batch each, of at most `most` windows.

    `even`: in as many parts as the rank with the most windows, `of_any_rank`, needs, as even as possible; a part may be
    empty. For ranks whose every forward pass needs all others.
    """
    if not even:
        return [(first, min(first + most, windows)) for first in range(0, windows, most)]
    count = -(-of_any_rank // most)
    return [share(windows, part, count) for part in range(count)]


def check_elastic(job: Job) -> None:
    """JobError for a job in which a rank has state that no other one has, so that it cannot go on without it."""
    rules = (
        ("train.parallel", job.train.parallel, job.train.parallel != "fsdp", "auto or ddp"),
        ("data.stream", json.dumps(job.data.stream), not job.data.stream, "false"),
        ("outer.exchange", job.outer.exchange, not job.outer.exchange, "none"),
    )
    for name, value, holds, allowed in rules:
        if not holds:
            raise JobError(f"{name} = {value}; allowed in an elastic job: {allowed}")


def check_ranks(job: Job, ranks: int) -> None:
    """JobError if a rank would have no window of a step, and so no gradient to average."""
    first, last = job.own_windows
    if last - first < ranks:
        of_cluster = f" in cluster {job.outer.cluster}'s share" if job.outer.clusters > 1 else ""
        least = -(-ranks * job.windows // (last - first)) if last > first else ranks * job.outer.clusters
        raise JobError(
            f"train.global_batch_tokens = {job.train.global_batch_tokens}: {last - first} windows of"
            f" {job.model.block_size} tokens{of_cluster} for {ranks} ranks; allowed: at least"
            f" {least * job.model.block_size}"
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
    _check_stream(job, data)
    for split, count in (("train", len(data.train)), ("val", len(data.val))):
        if count <= model.block_size and not (job.data.stream and split == "train"):
            raise JobError(
                f"model.block_size = {model.block_size}: the {split} split of {path} has {count} tokens;"
                f" allowed: at most {count - 1}"
            )
    return data


def _check_stream(job: Job, data: TokenSet) -> None:
    """JobError if the job streams its text and the token set was not prepared for that, or the other way round."""
    streamed = STREAM in data.manifest
    if job.data.stream != streamed:
        kind = "only what a streamed text needs" if streamed else "a text's tokens, not the files of a streamed one"
        here = json.dumps(job.data.stream)
        raise JobError(
            f"data.stream = {here}: {job.data.path} has {kind}; allowed: {json.dumps(streamed)}, or prepare it anew"
        )


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
        *_rules_of_llama(model),
        *_rules_of_streams(job),
        *_rules_of_clusters(job),
        ("train.global_batch_tokens", train.global_batch_tokens % block == 0, batch),
        ("train.min_lr", train.min_lr <= train.lr, f"at most train.lr = {train.lr}"),
        ("train.warmup", train.warmup < schedule[1] or not train.warmup, f"less than {schedule[0]} = {schedule[1]}"),
    )
    if train.parallel == "ddp" and train.replicas > 1:
        raise JobError(f"train.replicas = {train.replicas}; allowed with train.parallel = ddp: 1")
    if train.recompute and train.compile == "true":
        raise JobError("train.recompute = true; allowed with train.compile = true: false")
    for name, holds, allowed in rules:
        if not holds:
            raise JobError(f"{name} = {attrgetter(name)(job)}; allowed: {allowed}")


def _rules_of_llama(model: ModelSection) -> list[tuple[str, bool, str]]:
    """The rules for its keys, as (key, whether the rule holds, what is allowed)."""
    if model.architecture != "llama":
        plain = {field.name: field.default for field in dataclasses.fields(model)}
        return [
            (f"model.{name}", getattr(model, name) == plain[name], f"{json.dumps(plain[name])} unless llama is trained")
            for name in ("n_kv_head", "intermediate_size", "rope_base", "norm_epsilon", "tie")
        ]
    shared = model.n_kv_head == 0 or model.n_head % model.n_kv_head == 0
    pairs = f"an even multiple of model.n_head = {model.n_head}: a head's width is turned in pairs"
    return [
        ("model.n_kv_head", shared, f"0 or a divisor of model.n_head = {model.n_head}"),
        ("model.n_embd", model.n_embd % (2 * model.n_head) == 0, pairs),
        ("model.dropout", model.dropout == 0, "0 for llama"),
    ]


def _rules_of_streams(job: Job) -> list[tuple[str, bool, str]]:
    """The rules for a text that is read while training, likewise."""
    streams = ", ".join(name for name in ARCHITECTURES if name not in WHOLE_DOCUMENTS)
    sources = "with data.stream = true one folder, hf:NAME[:CONFIG], or an s3:// or abfs:// address"
    return [
        ("data.source", not job.data.stream or job.data.source not in ("", "stdlib"), sources),
        (
            "model.architecture",
            not job.data.stream or job.model.architecture not in WHOLE_DOCUMENTS,
            f"with data.stream = true {streams}; its windows are of whole documents",
        ),
    ]


def _rules_of_clusters(job: Job) -> list[tuple[str, bool, str]]:
    """The rules for several clusters that train together, likewise."""
    outer, steps = job.outer, job.train.steps
    if not outer.exchange:
        return [
            ("outer.clusters", outer.clusters == 1, "1 without outer.exchange"),
            ("outer.cluster", outer.cluster == 1, "1"),
        ]
    below = steps // outer.every * outer.every
    near = f"a multiple of outer.every = {outer.every}, such as {below or outer.every}"
    each = f"{outer.clusters} of them, with commas, or none"
    return [
        ("outer.cluster", outer.cluster <= outer.clusters, f"from 1 to outer.clusters = {outer.clusters}"),
        ("outer.shares", not outer.shares or outer.shares.count(",") + 1 == outer.clusters, each),
        ("outer.names", not outer.names or outer.names.count(",") + 1 == outer.clusters, each),
        ("outer.overlap", outer.overlap < outer.every, f"less than outer.every = {outer.every}"),
        ("train.steps", steps % outer.every == 0, near),
        ("train.parallel", job.train.parallel != "fsdp", "auto or ddp with outer.exchange"),
        ("train.replicas", job.train.replicas == 1, "1 with outer.exchange"),
        ("data.stream", not job.data.stream, "false with outer.exchange"),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the job in one line. Exit code: 0, or 2 for one that cannot run, with why on stderr."""
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
    first, last = job.own_windows
    shares = [end - begin for begin, end in (share(last - first, rank, args.ranks) for rank in range(args.ranks))]
    print(
        f"{job.run.name}: {job.train.steps} steps of {job.windows} windows of {job.model.block_size} tokens;"
        f" {args.ranks} {'rank' if args.ranks == 1 else 'ranks'} with {'+'.join(map(str, shares))} windows,"
        f" {job.train.micro_batch} at a time"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
