"""A training step of GPT-2 124M: the trainer against the same model in a plain loop (eager, fp32, stock AdamW).

    python tests/bench/bench_step.py [--steps 4] [--rounds 2] [--precision auto]

Both sides take turns in processes of their own, and the best step of each counts. Goals on a CPU without bf16:
1.15x at 1x1024 and 1.05x at 4x1024 tokens, and 70 % of the matmul speed that was measured in the same process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gpt2

sys.path.insert(0, str(gpt2.ROOT))


def plain(rows: int, steps: int, data: Path) -> None:
    """The loop that anyone would write first; prints the tokens per second of each step."""
    import torch
    from torch.nn import functional

    from training.data import order, token_set
    from training.models.gpt2 import GPT, Shape

    torch.manual_seed(0)
    model = GPT(Shape(n_layer=12, n_head=12, n_embd=768, block_size=1024, vocab_size=gpt2.VOCABULARY))
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
    split = token_set.open(data).train
    speeds = []
    for step in range(steps):
        start = time.perf_counter()
        windows = torch.from_numpy(order.crops(split, order.batch_windows(len(split), 1024, rows, 0, step), 1024))
        logits = functional.linear(model.hidden(windows[:, :-1]), model.tokens.weight)
        loss = functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        speeds.append(rows * 1024 / (time.perf_counter() - start))
    print(json.dumps(speeds))


def run_plain(rows: int, steps: int, data: Path) -> float:
    command = [sys.executable, __file__, "--plain", str(rows), "--steps", str(steps), "--data", str(data)]
    without = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=gpt2.ROOT, env=without)
    return float(max(json.loads(done.stdout)))


def run_ours(rows: int, steps: int, data: Path, precision: str) -> tuple[float, float, str]:
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            f"train.steps={steps}",
            f"train.global_batch_tokens={rows * 1024}",
            f"train.micro_batch={rows}",
            f"train.precision={precision}",
            "train.eval_windows=1",
            "train.eval_every=0",
            f"checkpoint.every={steps}",
        ]
        printed = gpt2.train(Path(folder) / "run", data, overrides)
        best = max(gpt2.lines(Path(folder) / "run"), key=lambda line: line["tokens_per_s"])
    chosen = next(line for line in printed.splitlines() if line.startswith("precision "))
    return best["tokens_per_s"], best["peak_share"], chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--plain", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.plain:
        plain(args.plain, args.steps, args.data)
        return
    goals = {1: 1.15, 4: 1.05}
    with tempfile.TemporaryDirectory() as folder:
        data = gpt2.made_up_tokens(Path(folder))
        print(f"{'tokens':>8} {'plain tok/s':>12} {'ours tok/s':>11} {'ratio':>6} {'goal':>5} {'of matmul peak':>15}")
        for rows in args.rows:
            plains, ours = [], []
            for _ in range(args.rounds):
                plains.append(run_plain(rows, args.steps, data))
                ours.append(run_ours(rows, args.steps, data, args.precision))
            speed, share, chosen = max(ours)
            goal = f"{goals[rows]:5.2f}" if rows in goals else "     "
            ratio = speed / max(plains)
            row = f"{rows}x1024   {max(plains):12.0f} {speed:11.0f} {ratio:6.2f} {goal} {share:15.0%}   {chosen}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
