"""A training step of GPT-2 124M: the trainer against a plain loop on the same model, like with like.

    python tests/bench/bench_step.py [--steps 4] [--rounds 2] [--rows 1 4] [--precision fp32 bf16] [--layers 12]

The plain loop is the one that nanoGPT has: autocast, torch's AdamW, cross-entropy on all logits at once. Both sides run
in every precision that this processor has instructions for, and each process alternates eager and compiled steps. After
each step it measures its matmul peak, which the shares refer to. Both sides take turns, and the best step counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpt2

sys.path.insert(0, str(gpt2.ROOT))

STANCES = ("force_eager", "default")
"""Of torch.compiler.set_stance: for the even steps, which are eager, and for the odd ones, which are compiled."""


def plain(spec: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Tokens per second and matmul peak (FLOP/s) of each step of the plain loop."""
    import torch
    from torch.nn import functional

    from training import precision
    from training.data import order, token_set
    from training.models.gpt2 import GPT, Shape

    torch.manual_seed(0)
    rows, device = spec["rows"], torch.device("cpu")
    shape = Shape(n_layer=spec["layers"], n_head=12, n_embd=768, block_size=1024, vocab_size=gpt2.VOCABULARY)
    model = GPT(shape)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95))

    def loss_of(windows: torch.Tensor) -> torch.Tensor:
        logits = functional.linear(model.hidden(windows[:, :-1]), model.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())

    compiled_loss_of = torch.compile(loss_of, dynamic=False)

    def train(step: int) -> float:
        start = time.perf_counter()
        windows = torch.from_numpy(order.crops(split, order.batch_windows(len(split), 1024, rows, 0, step), 1024))
        with torch.autocast("cpu", torch.bfloat16, enabled=spec["precision"] == "bf16"):
            loss = compiled_loss_of(windows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        return float(rows * 1024 / (time.perf_counter() - start))

    split = token_set.open(Path(spec["data"])).train
    speeds, peaks = [], []
    for step in range(spec["steps"]):
        with torch.compiler.set_stance(STANCES[step % 2]):
            speeds.append(train(step))
        peaks.append(precision.matmul_peak(spec["precision"], model, device))
    return speeds, peaks


def ours(spec: dict[str, Any]) -> tuple[list[float], list[float]]:
    """The same of the trainer's loop, by its own metrics."""
    import torch

    from training import job as jobs
    from training import precision
    from training.loop import Loop
    from training.parallel.ranks import join
    from training.train import StopRequest

    peaks = []

    class Alternating(Loop):
        def _step(self) -> bool:
            with torch.compiler.set_stance(STANCES[self.state.step % 2]):
                ended = super()._step()
            peaks.append(precision.matmul_peak(spec["precision"], self.state.model, self.ranks.device))
            return ended

    with tempfile.TemporaryDirectory() as folder:
        sizes = [f"train.global_batch_tokens={spec['rows'] * 1024}", f"train.micro_batch={spec['rows']}"]
        ways = [f"train.precision={spec['precision']}", "train.compile=true", f"model.n_layer={spec['layers']}"]
        length = [f"train.steps={spec['steps']}", "train.warmup=0", f"checkpoint.every={spec['steps']}"]
        rest = [f"data.path={spec['data']}", "train.eval_windows=1", "train.eval_every=0"]
        job = jobs.load(gpt2.JOB, [*sizes, *ways, *length, *rest])
        Alternating(job, Path(folder), join(60), StopRequest()).run()
        return [line["tokens_per_s"] for line in gpt2.lines(Path(folder))], peaks


SIDES: dict[str, Callable[[dict[str, Any]], tuple[list[float], list[float]]]] = {"plain": plain, "ours": ours}


def child(side: str, spec: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Run a side in a process of its own: ours with tcmalloc as on a node, the plain one as anybody would."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    if side == "ours":
        environment = gpt2.environment()
    command = [sys.executable, __file__, "--child", side, json.dumps(spec)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=gpt2.ROOT, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"bench: {side} {spec}\n{done.stdout}{done.stderr}")
    speeds, peaks = json.loads(done.stdout.splitlines()[-1])
    return speeds, peaks


def compare(spec: dict[str, Any], rounds: int) -> None:
    """Print a row for eager and one for compiled."""
    found: dict[str, tuple[list[float], list[float]]] = {side: ([], []) for side in SIDES}
    for _ in range(rounds):
        for side in SIDES:
            for all_of, new in zip(found[side], child(side, spec), strict=True):
                all_of.extend(new)
    per_token = flops_per_token(spec["layers"])
    for way, name in enumerate(("eager", "compiled")):
        best = {side: max(speeds[way::2]) for side, (speeds, _) in found.items()}
        shares = {side: best[side] * per_token / max(peaks) for side, (_, peaks) in found.items()}
        print(
            f"{spec['rows']}x1024   {spec['precision']:5} {name:9} {best['plain']:12.0f} {best['ours']:11.0f}"
            f" {best['ours'] / best['plain']:6.2f} {shares['plain']:12.0%} {shares['ours']:11.0%}"
            f" {max(found['ours'][1]) / 1e9:10.0f} GFLOP/s",
            flush=True,
        )


def flops_per_token(layers: int) -> float:
    import torch

    from training.models.gpt2 import GPT, Shape

    with torch.device("meta"):
        model = GPT(Shape(n_layer=layers, n_head=12, n_embd=768, block_size=1024, vocab_size=gpt2.VOCABULARY))
    return model.flops_per_token()


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(SIDES[sys.argv[2]](json.loads(sys.argv[3]))))
        return
    features = gpt2.features()
    has_bf16 = {"avx512_bf16", "amx_bf16"} & set(features.split())
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=4, help="of each way")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"] if has_bf16 else ["fp32"])
    parser.add_argument("--layers", type=int, default=12, help="fewer for a quick look")
    args = parser.parse_args()
    print(f"GPT-2 with {args.layers} layers, best of {args.rounds} rounds of {args.steps} steps, on {features}")
    titles = f"{'plain tok/s':>12} {'ours tok/s':>11} {'ratio':>6} {'plain share':>12} {'our share':>11}"
    print(f"{'tokens':8} {'':15} {titles} of a matmul peak of")
    with tempfile.TemporaryDirectory() as folder:
        data = gpt2.made_up_tokens(Path(folder))
        for rows in args.rows:
            for precision in args.precision:
                spec = {"rows": rows, "precision": precision, "layers": args.layers, "data": str(data)}
                compare({**spec, "steps": 2 * args.steps}, args.rounds)


if __name__ == "__main__":
    main()
