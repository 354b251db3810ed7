"""Time to a loss: the demo's job with AdamW and with Muon, against a plain loop, on the same text, sizes and machine.

    python tests/bench/bench_loss.py [--steps 600] [--share 0.5] [--every 20] [--muon train.muon_lr=0.03 ...]

The plain loop is the one that nanoGPT has: random windows, torch's AdamW, a cosine with a warm-up, cross-entropy on all
logits at once. What it reaches at its end is the goal of the others; Muon's schedule has this
share of the steps. Validations are not counted. The runs stay in DIR (--keep DIR): `fab report` reads each of them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from pathlib import Path

import gpt2

sys.path.insert(0, str(gpt2.ROOT))

DEMO = gpt2.ROOT / "training" / "jobs" / "demo.toml"
VOCABULARY = int(tomllib.loads(DEMO.read_text())["data"]["train_vocab"])
ADAMW = ["train.lr=3e-3", "train.min_lr=1e-4", "train.warmup=20"]
"""AdamW's rates for the demo's model, for the plain loop too."""
Curve = list[tuple[int, float, float]]
"""(step, seconds of training so far, validation loss)"""


def tokens(folder: Path, vocabulary: int) -> Path:
    """The demo's text in a vocabulary of so many tokens, as `fab prepare demo` makes it."""
    library = f"{sysconfig.get_path('stdlib')}/**/*.py"
    options = ["--quiet", "--train-vocab", str(vocabulary), "--val-fraction", "0.05", "--invalid", "skip"]
    command = [sys.executable, "-m", "training.data.prepare", "--out", str(folder), *options, library]
    subprocess.run(command, check=True, cwd=gpt2.ROOT, env=gpt2.environment())
    return folder


def plain(data: Path, steps: int, every: int) -> Curve:
    """Train with the plain loop, in this process."""
    import torch
    from torch.nn import functional

    from training import job as jobs
    from training import optimizer as optimizers
    from training.data import order, token_set
    from training.models.gpt2 import GPT

    job = jobs.load(DEMO, [f"data.path={data}", f"train.steps={steps}", *ADAMW])
    train, block, found = job.train, job.model.block_size, token_set.open(data)
    torch.manual_seed(train.seed)
    model = GPT(GPT.shape_of(job.model, found.vocab_size))
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": train.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=train.lr, betas=(train.beta1, train.beta2))
    held_out = torch.from_numpy(
        order.crops(found.val, order.evaluation_windows(len(found.val), block, train.eval_windows), block)
    )

    def loss_of(windows: torch.Tensor) -> torch.Tensor:
        logits = functional.linear(model.hidden(windows[:, :-1]), model.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())

    curve, seconds = [], 0.0
    for step in range(1, steps + 1):
        start = time.perf_counter()
        optimizers.set_learning_rate(optimizer, optimizers.learning_rate(train, step))
        starts = torch.randint(len(found.train) - block, (job.windows,)).numpy()
        for windows in torch.from_numpy(order.crops(found.train, starts, block)).split(train.micro_batch):
            (loss_of(windows) * len(windows) / job.windows).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip)
        optimizer.step()
        optimizer.zero_grad()
        seconds += time.perf_counter() - start
        if step % every == 0 or step == steps:
            with torch.no_grad():
                losses = [float(loss_of(windows)) * len(windows) for windows in held_out.split(train.micro_batch)]
            curve.append((step, seconds, sum(losses) / len(held_out)))
    return curve


def ours(run: Path, data: Path, steps: int, every: int, overrides: list[str]) -> Curve:
    """Train the demo's job on one rank."""
    length = [f"train.steps={steps}", f"train.eval_every={every}", f"checkpoint.every={steps}"]
    gpt2.train(run, data, [*length, "train.precision=fp32", *overrides], DEMO)
    curve, seconds = [], 0.0
    for line in gpt2.lines(run):
        seconds += sum(line["seconds"].get(phase, 0.0) for phase in ("data", "compute", "communication"))
        if "val_loss" in line:
            curve.append((line["step"], seconds, line["val_loss"]))
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--share", type=float, default=0.4, help="Muon's steps, as a share of AdamW's")
    parser.add_argument("--every", type=int, default=20, help="steps between validations")
    parser.add_argument("--keep", type=Path, help="where the runs stay")
    parser.add_argument("--muon", nargs="*", default=[], help="keys of the job for the run with Muon, to tune it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = options.keep or Path(folder)
        data = tokens(Path(folder) / "tokens", VOCABULARY)
        few = round(options.steps * options.share)
        curves = {
            "plain loop, AdamW": plain(data, options.steps, options.every),
            "ours, AdamW": ours(home / "adamw", data, options.steps, options.every, ["train.optimizer=adamw", *ADAMW]),
            "ours, Muon": ours(home / "muon", data, few, options.every, ["train.optimizer=muon", *options.muon]),
        }
    goal = curves["plain loop, AdamW"][-1][2]
    print(f"the demo's job on one rank, {gpt2.features()}")
    print(f"goal: a validation loss of {goal:.3f}, which the plain loop has after its last step")
    print(f"{'':20} {'steps':>6} {'seconds':>8} {'share':>6} {'at its end':>11}")
    for name, curve in curves.items():
        step, seconds = next(((step, seconds) for step, seconds, loss in curve if loss <= goal), (0, float("nan")))
        share = seconds / curves["plain loop, AdamW"][-1][1]
        print(f"{name:20} {step:6} {seconds:8.0f} {share:6.2f} {curve[-1][2]:11.3f}")


if __name__ == "__main__":
    main()
