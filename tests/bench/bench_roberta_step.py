"""A training step of RoBERTa: the trainer against transformers' RobertaForMaskedLM in the loop of its Trainer.

    python tests/bench/bench_roberta_step.py [--device cuda] [--size base large] [--rows 4] [--steps 5] [--dropout 0.1]

Both sides train on the same batches: the same windows with the same masks, forward, backward, clipping and AdamW, in
the same precision, in one process, step by step in turns. transformers' side does what its Trainer does in a step, with
its defaults: labels for all places, -100 where nothing is masked, and torch's fused AdamW. The ratio is of the medians.
Exit code 1 if one is below GOAL.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import step_sides  # first: it finds the modules of training
import torch
from accelerate.state import AcceleratorState

from training import optimizer as optimizers
from training.checkpoint.state import TrainingState
from training.data import order
from training.models.roberta import PAD, Roberta, Shape
from training.parallel.ddp import OneRank
from training.parallel.ranks import join
from training.sections import TrainSection
from training.stepper import Stepper

SIZES = {"small": (4, 4, 256), "base": (12, 12, 768), "large": (24, 16, 1024)}
BLOCK, VOCABULARY = 512, 50_257
LINE = 130
"""Mean tokens of a line of made-up text: wikitext's paragraphs have about as many, and so windows are as full."""
GOAL = 1.2
"""The least ratio of the speeds, ours to theirs."""
TRAIN = TrainSection(lr=6e-4, beta2=0.98, epsilon=1e-6, weight_decay=0.01)


def batches(model: Roberta, rows: int, steps: int) -> list[tuple[torch.Tensor, ...]]:
    """Our batches of made-up lines."""
    random = np.random.default_rng(0)
    split = random.integers(0, VOCABULARY - 1, 4 * rows * steps * BLOCK)
    split[random.random(len(split)) < 1 / LINE] = VOCABULARY - 1
    windows = model.windows(split, VOCABULARY - 1)
    made = []
    for step in range(steps):
        chosen = windows.read(windows.batch(rows, 1, step))
        made.append(model.batch(torch.from_numpy(chosen), order.window_seeds(1, step, 0, rows)))
    return made


def ours(shape: Shape, dropout: float, mixed: str, device: torch.device) -> Callable[[tuple[torch.Tensor, ...]], float]:
    """A step of the trainer on a batch: training.stepper, as the loop calls it."""
    torch.manual_seed(0)
    model = Roberta(shape, dropout).to(device)
    stepper = Stepper(TRAIN, TrainingState("roberta", model, optimizers.build(model, TRAIN)), OneRank(join(60)), mixed)
    stepper.module.train()

    def step(batch: tuple[torch.Tensor, ...]) -> float:
        loss = stepper.micro_step(tuple(part.to(device) for part in batch), 1 / len(batch[3]), last=True)
        stepper.update()
        return float(loss)

    return step


def theirs(
    shape: Shape, dropout: float, mixed: str, device: torch.device
) -> Callable[[tuple[torch.Tensor, ...]], float]:
    """The same batch as transformers takes it, in the steps of its Trainer."""
    import transformers
    from accelerate import Accelerator

    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.n_embd,
        num_hidden_layers=shape.n_layer,
        num_attention_heads=shape.n_head,
        intermediate_size=4 * shape.n_embd,
        max_position_embeddings=BLOCK + 2,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    model = transformers.RobertaForMaskedLM(config).to(device).train()
    settings = {"lr": TRAIN.lr, "betas": (TRAIN.beta1, TRAIN.beta2), "eps": TRAIN.epsilon}
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=TRAIN.weight_decay, fused=True, **settings)
    accelerator = Accelerator(mixed_precision=mixed, cpu=device.type == "cpu")
    model, optimizer = accelerator.prepare(model, optimizer)

    def step(batch: tuple[torch.Tensor, ...]) -> float:
        inputs, _, places, targets = batch
        labels = torch.full_like(inputs, -100)
        labels.view(-1)[places] = targets
        given = {"input_ids": inputs, "attention_mask": (inputs != PAD).long(), "labels": labels}
        loss = model(**{name: value.to(device) for name, value in given.items()}).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), TRAIN.clip)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def compare(size: str, name: str, args: argparse.Namespace, device: torch.device) -> float:
    """Print a row: the tokens a second of both sides' steps, taken in turns, and their ratio, which is returned."""
    AcceleratorState._reset_state(reset_partial_state=True)  # accelerate has one precision per process, else
    layers, heads, width = SIZES[size]
    shape = Shape(n_layer=layers, n_head=heads, n_embd=width, block_size=BLOCK, vocab_size=VOCABULARY + 8)
    mixed = "no" if name == "fp32" else name
    made: dict[str, Any] = {"ours": ours, "theirs": theirs}
    sides = {side: make(shape, args.dropout, mixed, device) for side, make in made.items()}
    with torch.device("meta"):  # its weights are not used
        model = Roberta(shape)
    data = batches(model, args.rows, args.steps + 1)
    medians, losses = step_sides.in_turns(sides, data)
    return step_sides.print_row(f"{size:6} {args.rows}x{BLOCK:<5} {name:5}", args.rows, BLOCK, medians, losses)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="auto", choices=step_sides.CHOICES)
    parser.add_argument("--size", nargs="+", choices=list(SIZES), help="large on a GPU, else base")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--precision", nargs="+")
    args = parser.parse_args()
    device = step_sides.chosen(args.device)
    sizes = args.size or ["large" if device.type == "cuda" else "base"]
    precisions = args.precision or step_sides.precisions(device)
    print(
        f"RoBERTa, dropout {args.dropout}, median of {args.steps} steps in turns,"
        f" {torch.get_num_threads()} threads, {step_sides.features(device)}"
    )
    print(f"{'size':6} {step_sides.HEADINGS}")
    pairs = itertools.product(sizes, precisions)
    missed = [f"{size} in {name}" for size, name in pairs if compare(size, name, args, device) < GOAL]
    print(f"below the goal ({GOAL:g}): {', '.join(missed) or 'none'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
