"""What the benches of training/ share: GPT-2 124M on made-up tokens, started as a job is."""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "training" / "jobs" / "gpt2-124m-openwebtext.toml"
VOCABULARY = 50257


def made_up_tokens(folder: Path, count: int = 400_000) -> Path:
    import numpy as np

    sys.path.append(str(ROOT / "tests" / "support"))
    import token_files

    random = np.random.default_rng(0)
    train, val = random.integers(0, VOCABULARY, count), random.integers(0, VOCABULARY, 5000)
    token_files.write(folder, train=train, val=val, vocab_size=VOCABULARY, encoding={"name": "gpt2"})
    return folder


def environment() -> dict[str, str]:
    """As on a node: tcmalloc where this machine has it."""
    values = {**os.environ, "PYTHONPATH": str(ROOT)}
    if "tcmalloc" in values.get("LD_PRELOAD", ""):
        return values
    library = ctypes.util.find_library("tcmalloc_minimal") or ctypes.util.find_library("tcmalloc")
    if library:
        values["LD_PRELOAD"] = library
    else:
        print("no tcmalloc on this machine: a node has it", file=sys.stderr)
    return values


def features() -> str:
    """The processor and the vector instructions that it has, as Linux names them."""
    facts = dict(line.split("\t", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if "\t" in line)
    known = {name: value.lstrip("\t: ") for name, value in facts.items()}
    wanted = ("avx2", "avx512bw", "avx512_vbmi2", "avx512_bf16", "amx_tile", "amx_bf16")
    return f"{known['model name']}, {' '.join(flag for flag in wanted if flag in known['flags'].split())}"


def train(run: Path, data: Path, overrides: Sequence[str], job: Path = JOB) -> str:
    """One rank of a job, by default the published one; returns what it printed."""
    places = [f"data.path={data}", f"run.directory={run}"]
    command = [sys.executable, "-m", "training.train", str(job), *places, *overrides]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
