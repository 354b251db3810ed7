"""A training step of Llama: the trainer against transformers' LlamaForCausalLM in the loop of its Trainer.

    python tests/bench/bench_llama_step.py [--device cuda] [--size small grouped] [--rows 4] [--compile]

Both sides train on the same batches: forward, backward, clipping and AdamW, in the same precision, in one process, step
by step in turns. transformers' side does what its Trainer does in a step, with its defaults: the loss from labels that
it shifts itself, attention by scaled_dot_product_attention, and torch's fused AdamW. The ratio is of the medians.
Exit code 1 if one of the size SMALL is below GOAL.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import step_sides  # first: it finds the modules of training
import torch
from accelerate.state import AcceleratorState

from training import optimizer as optimizers
from training.checkpoint.state import TrainingState
from training.models.counts import intermediate_size
from training.models.llama import Llama, Shape
from training.parallel.ddp import OneRank
from training.parallel.ranks import join
from training.sections import TrainSection
from training.stepper import Stepper

SIZES = {"small": (6, 8, 8, 512), "grouped": (6, 8, 2, 512), "medium": (12, 12, 12, 768), "1b": (22, 32, 4, 2048)}
"""Layers, heads, heads of keys, width."""
SMALL, GOAL = "small", 1.15
"""The size that has a goal, and the least ratio of the speeds, ours to theirs."""
VOCABULARY = 32_000
TRAIN = TrainSection(lr=3e-4)


def ours(shape: Shape, mixed: str, device: torch.device, compiled: bool) -> Callable[[torch.Tensor], float]:
    """A step of the trainer on windows of length + 1: training.stepper, as the loop calls it."""
    torch.manual_seed(0)
    model = Llama(shape).to(device)
    stepper = Stepper(TRAIN, TrainingState("llama", model, optimizers.build(model, TRAIN)), OneRank(join(60)), mixed)
    stepper.module.train()
    if compiled:
        stepper.compile()

    def step(windows: torch.Tensor) -> float:
        batch = model.batch(windows, [0] * len(windows))
        loss = stepper.micro_step(tuple(part.to(device) for part in batch), 1 / batch[1].numel(), last=True)
        stepper.update()
        return float(loss)

    return step


def theirs(shape: Shape, mixed: str, device: torch.device, compiled: bool) -> Callable[[torch.Tensor], float]:
    """The same windows as transformers takes them, in the steps of its Trainer."""
    import transformers
    from accelerate import Accelerator

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.n_embd,
        num_hidden_layers=shape.n_layer,
        num_attention_heads=shape.n_head,
        num_key_value_heads=shape.n_kv_head,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=shape.block_size,
        use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config).to(device).train()
    settings = {"lr": TRAIN.lr, "betas": (TRAIN.beta1, TRAIN.beta2), "eps": TRAIN.epsilon}
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=TRAIN.weight_decay, fused=True, **settings)
    accelerator = Accelerator(mixed_precision=mixed, cpu=device.type == "cpu")
    model, optimizer = accelerator.prepare(model, optimizer)
    if compiled:
        model.compile(dynamic=False)

    def step(windows: torch.Tensor) -> float:
        given = windows[:, :-1].to(device)
        loss = model(input_ids=given, shift_labels=windows[:, 1:].contiguous().to(device), labels=given).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), TRAIN.clip)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def compare(size: str, name: str, args: argparse.Namespace, device: torch.device) -> float:
    """Print a row: the tokens a second of both sides' steps, taken in turns, and their ratio, which is returned."""
    AcceleratorState._reset_state(reset_partial_state=True)  # accelerate has one precision per process, else
    layers, heads, groups, width = SIZES[size]
    shape = Shape(
        n_layer=layers,
        n_head=heads,
        n_kv_head=groups,
        n_embd=width,
        intermediate_size=intermediate_size(width),
        block_size=args.block,
        vocab_size=VOCABULARY,
    )
    mixed = "no" if name == "fp32" else name
    made: dict[str, Any] = {"ours": ours, "theirs": theirs}
    sides = {side: make(shape, mixed, device, args.compile) for side, make in made.items()}
    torch.manual_seed(1)
    data = torch.randint(0, VOCABULARY, (args.steps + 1, args.rows, args.block + 1))
    medians, losses = step_sides.in_turns(sides, data)
    return step_sides.print_row(
        f"{size:8} {args.rows}x{args.block:<5} {name:5}", args.rows, args.block, medians, losses
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="auto", choices=step_sides.CHOICES)
    parser.add_argument("--size", nargs="+", choices=list(SIZES), help="1b on a GPU, else small")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--block", type=int, default=512)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--precision", nargs="+")
    parser.add_argument("--compile", action="store_true", help="both sides by torch.compile")
    args = parser.parse_args()
    device = step_sides.chosen(args.device)
    sizes = args.size or ["1b" if device.type == "cuda" else "small"]
    precisions = args.precision or step_sides.precisions(device)
    print(
        f"Llama, {'compiled' if args.compile else 'eager'}, median of {args.steps} steps in turns,"
        f" {torch.get_num_threads()} threads, {step_sides.features(device)}"
    )
    print(f"{'size':8} {step_sides.HEADINGS}")
    measured = [(size, name, compare(size, name, args, device)) for size in sizes for name in precisions]
    missed = [f"{size} in {name}" for size, name, ratio in measured if size == SMALL and ratio < GOAL]
    print(f"below the goal ({GOAL:g} at the size {SMALL}): {', '.join(missed) or 'none'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
