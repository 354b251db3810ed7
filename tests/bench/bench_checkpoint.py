"""What checkpoints cost a run of GPT-2 124M that saves every 50 steps, and how long going on from one takes.

    python tests/bench/bench_checkpoint.py

The cost of a save is the stall of its step (agreement of the ranks, copy) and what the writing behind it takes from
the steps after it, until it is done: measured on a few steps around a save, and set against 50 of 1x1024 tokens.
Goals: at most 1 % for the stall; at most 10 s from the start of the process to training again.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import gpt2

sys.path.insert(0, str(gpt2.ROOT))

SAVE = 4
STEPS = 9
EVERY = 50


def seconds(line: dict[str, float]) -> float:
    """Of the step alone."""
    return 1024 / line["tokens_per_s"]


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as folder:
        data, run = gpt2.made_up_tokens(Path(folder) / "data"), Path(folder) / "run"
        common = [
            "train.global_batch_tokens=1024",
            "train.micro_batch=1",
            "train.precision=fp32",
            "train.eval_every=0",
            "train.eval_windows=1",
            f"checkpoint.every={SAVE}",
        ]
        gpt2.train(run, data, [*common, f"train.steps={STEPS}"])
        lines = gpt2.lines(run)
        # the first steps of a process are slower; from the second save on the memory for the copy is there
        quiet = statistics.median(seconds(line) for line in lines[1:SAVE])
        stall = lines[2 * SAVE - 1]["seconds"]["checkpoint"]
        first = lines[SAVE - 1]["seconds"]["checkpoint"]
        behind = sum(max(0.0, seconds(line) - quiet) for line in lines[SAVE : 2 * SAVE])
        begin = time.time()
        gpt2.train(run, data, [*common, f"train.steps={STEPS + 1}"])
        line = gpt2.lines(run)[-1]
        after = sum(line["seconds"].get(what, 0.0) for what in ("eval", "checkpoint"))
        resume = line["time"] - after - seconds(line) - begin
    size = 3 * 4 * 124_439_808 / 1e9
    print(f"a step of 1x1024 tokens                        {quiet:8.2f} s")
    share = f"{stall / (EVERY * quiet):7.2%} of {EVERY} steps (goal: 1 %)"
    print(f"stall of a save of {size:.2f} GB                     {stall:8.2f} s   {share}")
    print(f"of the first save, whose memory is new         {first:8.2f} s   {first / (EVERY * quiet):7.2%}")
    print(f"taken from the steps while it is written       {behind:8.2f} s   {behind / (EVERY * quiet):7.2%}")
    print(f"from the start of the process to training again {resume:7.2f} s   (goal: 10)")


if __name__ == "__main__":
    main()
