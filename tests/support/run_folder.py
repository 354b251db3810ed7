"""Run directories as a job leaves them, for tests of what reads them."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

BEGAN = 1_763_716_000.0
JOB = """\
[data]
path = "/data/stdlib"
source = "stdlib"

[model]
n_layer = 4
n_head = 6
n_embd = 192
block_size = 256
vocab_size = 0
init_from = ""

[train]
steps = {steps}
global_batch_tokens = {batch}
micro_batch = 4
lr = {lr}
min_lr = 6e-05
warmup = 10
eval_every = 20
precision = "auto"
timeout = 120

[checkpoint]
every = 50
keep = 2

[run]
name = "demo"
directory = ""
"""


def metrics(steps: int, *, ranks: int = 3, lr: float = 6e-4, batch: int = 12288, began: float = BEGAN) -> list[Any]:
    """Lines as the trainer writes them: a falling loss, a node that is a little slower, a validation every 20 steps."""
    dice = random.Random(steps + ranks)
    now, lines = began + 8, []
    for step in range(1, steps + 1):
        compute = [0.9 * dice.uniform(0.97, 1.06) * (1.12 if rank == 1 else 1) * 3 / ranks for rank in range(ranks)]
        loss = 2.35 + 4.6 * math.exp(-step / (28 * 6e-4 / lr)) + dice.gauss(0, 0.05)
        seconds = {"data": 0.004, "compute": compute[0], "communication": max(compute) - compute[0] + 0.03}
        if step % 50 == 0:
            seconds["checkpoint"] = 0.08
        line = {
            "step": step,
            "loss": loss,
            "lr": lr * min(1, step / 10) * (0.55 + 0.45 * math.cos(math.pi * step / steps)),
            "grad_norm": 0.6 + 3 * math.exp(-step / 20) + dice.random() * 0.4,
            "tokens": step * batch,
            "tokens_per_s": batch / sum(seconds.values()),
            "peak_share": 0.62 + dice.random() * 0.05,
            "rank_seconds": [round(value, 4) for value in compute],
        }
        if step % 20 == 0 or step == steps:
            seconds["eval"] = 0.7
            line |= {"val_loss": loss + 0.12, "val_bits_per_byte": (loss + 0.12) / math.log(2) / 1.55}
        now += sum(seconds.values())
        lines.append({**line, "seconds": seconds, "time": round(now, 3)})
    return lines


def write(run: Path, lines: list[Any], *, lr: float = 6e-4, batch: int = 12288, restart_at: int = 0) -> Path:
    """A run on node1, node2 and node3 that is over; with `restart_at`, node3 was lost after that step."""
    (run / "checkpoints").mkdir(parents=True)
    names = ["node1", "node2", "node3"]
    text = ["attempt 1: 3 ranks on node1, node2, node3"]
    log = [(BEGAN, "node1 -", line) for line in text]
    log += [
        (
            BEGAN + 4,
            "node1 0",
            "demo: 2.1 M parameters, 3 rank(s) on 3 node(s) over gloo, torch 2.13.0, 2 threads a rank",
        ),
        (BEGAN + 5, "node1 0", "precision fp32 (measured on one block, slowest rank: fp32 9.1 ms, bf16 25.0 ms)"),
    ]
    if restart_at:
        for line in lines[restart_at:]:
            line["time"] += 31
            line["rank_seconds"] = [value * 1.5 for value in line["rank_seconds"][:2]]
            line["tokens_per_s"] /= 1.5
        when = lines[restart_at - 1]["time"]
        names = names[:2]
        log += [
            (when + 14, "node1 -", "error: node3 (rank 2) is cut off: no word for 6 s"),
            (when + 15, "node1 -", "restart from the last checkpoint on 2 nodes; 1 more allowed"),
            (when + 16, "node1 -", "attempt 2: 2 ranks on node1, node2"),
            (when + 25, "node1 0", f"going on from step {restart_at}, verified on disk"),
        ]
    ended = lines[-1]["time"] + 2 if lines else BEGAN + 20
    log += [(ended - 1, "node1 0", "done"), (ended, "node1 -", f"{run.name} SUCCEEDED")]
    state = {"id": run.name, "state": "SUCCEEDED", "reason": "", "exit_code": 0, "nodes": names, "created": BEGAN - 1}
    state |= {"started": BEGAN, "ended": ended, "attempt": 2 if restart_at else 1, "price_per_hour": 0.0}
    nodes = [{"name": name, "slots": 1} for name in ("node1", "node2", "node3")]
    spec = {"launcher": "mpirun", "cluster": {"nodes": nodes}, "restarts": 2}
    (run / "state.json").write_text(json.dumps(state))
    (run / "spec.json").write_text(json.dumps(spec))
    (run / "job.toml").write_text(JOB.format(steps=len(lines), lr=lr, batch=batch))
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "log").write_text("".join(f"{when:.3f} {who} {text}\n" for when, who, text in log))
    for step in [step for step in (len(lines) - 50, len(lines)) if step > 0]:
        folder = run / "checkpoints" / f"step-{step:06d}"
        folder.mkdir()
        (folder / "state.json").write_text(json.dumps({"step": step, "precision": "fp32", "ranks": names}))
    return run
