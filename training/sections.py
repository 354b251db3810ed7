"""The keys of a job file, by section: name, default, allowed values, meaning. training/job.py reads them from the file.

The README's table of the keys is made from this file (tests/support/job_keys_table.py). Imports the standard library
only, like training/job.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from training.keys import at_least, fraction, key, not_negative, one_of, positive, text
from training.models import ARCHITECTURES

_MIRROR = re.compile(r"(none)?|(s3|abfs|file)://.*", re.DOTALL)
_BUCKET = re.compile(r"((s3|abfs|file)://.*[^/].*)?", re.DOTALL)
_SHARES = re.compile(r"([1-9]\d{0,5}(,[1-9]\d{0,5})*)?")
_NAMES = re.compile(r"([A-Za-z0-9_.-]+(,[A-Za-z0-9_.-]+)*)?")
_NAME = re.compile(r"(?=.*[^.])[A-Za-z0-9_.-]+")


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """[data]: what is trained on, and how `fab prepare` makes it."""

    path: str = key("", "the folder of a token set, see training.data.prepare", bool)
    """The token set's folder, at the same path on every node."""
    source: str = text("", "stdlib; or files, folders, globs (here or on the head), hf:NAME[:CONFIG]")
    """The text that `fab prepare` makes the token set from; a folder on your machine is copied to the head node. With
    `stream` one folder, hf:NAME[:CONFIG], or an s3:// or abfs:// address."""
    stream: bool = key(False, "true | false", lambda value: True)
    """Read and encode the text while training; `fab prepare` then makes vocabulary and validation text only. Not for
    roberta."""
    shuffle: int = at_least(0, 10_000)
    """With `stream`: documents in a row that are shuffled with each other; the files are, too. 0: neither."""
    timeout: int = at_least(1, 120)
    """With `stream`: seconds that a step waits for a source that gives nothing before the job fails; a warning comes
    earlier."""
    encoding: str = text("gpt2", "gpt2, another of tiktoken's, a .tiktoken rank file, or Llama's tokenizer.json")
    """The vocabulary."""
    train_vocab: int = at_least(0, 0)
    """Above 0: train a byte-level BPE of this size on the source instead of using `encoding`."""
    text_key: str = key("text", "the name of a column", bool)
    """The column or key of the text in .json, .jsonl, .parquet and hf: sources."""
    invalid: str = one_of("stop", "skip", "replace")
    """What to do with text that is not UTF-8; the source stdlib always skips it."""
    documents: str = one_of("whole", "lines")
    """What a document is: a file, row or line of JSON as a whole, or each line of its text that is not empty."""
    val_fraction: float = key(0.01, "a number from 0 to 0.5", lambda value: 0 <= value <= 0.5)
    """Share of the documents that is held out for validation; for the source stdlib 0.05."""


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """[model]: the architecture and its size. llama's own keys must keep their defaults for the others."""

    architecture: str = key("gpt2", " | ".join(ARCHITECTURES), lambda value: value in ARCHITECTURES)
    """Which model is trained: gpt2 and llama continue a text, roberta fills masks."""
    n_layer: int = at_least(1, 12)
    """Transformer blocks."""
    n_head: int = at_least(1, 12)
    """Attention heads of a block; divides n_embd."""
    n_kv_head: int = at_least(0, 0)
    """llama: heads of keys and values; divides n_head, and each is shared by n_head / n_kv_head heads. 0: n_head."""
    n_embd: int = at_least(1, 768)
    """Width of the residual stream."""
    intermediate_size: int = at_least(0, 0)
    """llama: width inside the MLP. 0: two thirds of 4 n_embd, rounded up to a multiple of 256, as in 7B and 13B."""
    block_size: int = at_least(2, 1024)
    """Tokens of context."""
    vocab_size: int = at_least(0, 0)
    """Size of the vocabulary; 0: the token set's, for roberta with its 8 tokens more."""
    dropout: float = fraction(0.0)
    """Probability with which an activation is dropped while training; llama drops none."""
    bias: bool = key(True, "true | false", lambda value: True)
    """Biases in the linear layers and norms, as GPT-2 has them; roberta always has them, llama never."""
    rope_base: float = positive(10_000.0)
    """llama: base of the rotations that are its positions; 10,000 in Llama 2."""
    norm_epsilon: float = positive(1e-5)
    """llama: added to the mean square in a norm; 1e-5 in Llama 2."""
    tie: bool = key(False, "true | false", lambda value: True)
    """llama: the token embedding is the output layer, too. Llama 2 has an output layer of its own."""
    init_from: str = text("", "a run, a checkpoint, or a folder with model.safetensors in Hugging Face's layout")
    """Start from these weights, of a run's best or newest model; empty: at random, by `train.seed`."""


@dataclass(frozen=True, kw_only=True)
class TrainSection:
    """[train]: the optimizer, its schedule, and how the ranks compute."""

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
    parallel: str = one_of("auto", "ddp", "fsdp")
    """ddp: every rank holds the whole model; fsdp: each holds a part of every parameter, gradient and moment; auto: ddp
    if these fit into 0.7 of a rank's memory, else fsdp. The sum is shown before the job starts, where the nodes' memory
    and model.vocab_size are set, and made again before the first step."""
    replicas: int = at_least(1, 1)
    """With fsdp: how many groups of ranks each hold the whole model in parts, a node's ranks, say; divides the ranks.
    Above 1, auto is fsdp."""
    recompute: bool = key(False, "true | false", lambda value: True)
    """Compute a block's activations again in the backward pass instead of keeping them: less memory, a third more
    time."""
    threads: int = at_least(0, 0)
    """Threads of each rank (OMP_NUM_THREADS); 0: a node's cores divided among its ranks."""
    timeout: int = key(120, "seconds, from 1 to 120", lambda value: 1 <= value <= 120)
    """How long a rank waits for the others before the job fails."""


@dataclass(frozen=True, kw_only=True)
class OuterSection:
    """[outer]: several clusters that train one model (DiLoCo, arXiv:2311.08105): each takes `every` steps by itself
    between two exchanges."""

    exchange: str = key("", "an s3://, abfs:// or file:// address", lambda value: bool(_BUCKET.fullmatch(value)))
    """The folder in a bucket through which this job, on several clusters, exchanges what each has learned (DiLoCo);
    `fab train JOB --with STACK2` sets it. Empty: one cluster trains alone."""
    clusters: int = at_least(1, 1)
    """How many clusters train together."""
    cluster: int = at_least(1, 1)
    """Which of them this one is, from 1."""
    names: str = key("", "names with commas, one for each cluster", lambda value: bool(_NAMES.fullmatch(value)))
    """The clusters' names, for messages; empty: their numbers."""
    shares: str = key("", "numbers with commas, one for each cluster", lambda value: bool(_SHARES.fullmatch(value)))
    """Each cluster's share of the global batch, such as 3,2; empty: equal ones."""
    every: int = at_least(1, 50)
    """Steps of a round: after them the clusters exchange the differences of their parameters. Divides train.steps."""
    overlap: int = at_least(0, 5)
    """Steps that a cluster trains on while its differences are on their way; fewer than `every`."""
    lr: float = positive(0.7)
    """Learning rate of the outer optimizer, which takes the clusters' mean difference as its gradient."""
    momentum: float = fraction(0.9)
    """Its Nesterov momentum."""
    bits: int = key(8, "4 | 8 | 32", lambda value: value in (4, 8, 32))
    """Bits of a difference that is sent; what 4 or 8 bits leave out is sent with a later round (error feedback)."""
    wait: int = at_least(1, 600)
    """Seconds that a cluster waits for the others' differences, counted from when its own are in the bucket; a round
    then ends without those that are missing."""
    keep: int = at_least(1, 50)
    """Rounds whose differences stay in the bucket, at least; as often the outer parameters and momentum are put there,
    8 bytes a parameter, for a cluster that comes later."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSection:
    """[checkpoint]: how often, how many, and where copies go."""

    every: int = at_least(1, 50)
    """Steps between checkpoints; the last step always has one."""
    keep: int = at_least(2, 2)
    """How many verified checkpoints are kept; at least two, in case the newest is damaged."""
    mirror: str = key("", "none, or an s3://, abfs:// or file:// address", lambda value: bool(_MIRROR.fullmatch(value)))
    """Where checkpoints and the best model are copied to, in a folder with the run's name. Empty: the cluster's bucket,
    if it has one; none: nowhere."""


@dataclass(frozen=True, kw_only=True)
class RunSection:
    """[run]: what the job is called, and where it writes."""

    name: str = key("run", "letters, digits, '-', '_' and '.'", lambda value: bool(_NAME.fullmatch(value)))
    """Start of the job's id: `demo` becomes demo-1, demo-2, ..."""
    directory: str = text("")
    """Run directory; empty: $RUN_DIR, or runs/<name> if that is not set."""
