"""A stream of C4's form: does the training ever wait for it, and how much faster it is than the training.

    python tests/bench/bench_stream.py [--steps 200] [--megabytes 40]

The text is the standard library's source in documents of C4's mean size, gzipped as C4 is, in a folder. `stream alone`
is the reader without a training, in a process of its own at a normal priority, and from memory or disk: what a network
adds is not in it. Then the smoke job's shape trains on it, on all cores of this machine, with the reader beside rank 0
as on a node; the same steps on a prepared token set of the same text are the reference. The first steps, in which the
reader starts, are counted apart. `resume` is the time from the start of a reader to its first step, at the last
document of a file.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

import gpt2
from bench_prepare import library

sys.path[:0] = [str(gpt2.ROOT), str(gpt2.ROOT / "tests" / "support")]

IN_THREADS = """
import socket, sys, threading
from training import train
from training.data.stream import client, serve

def start(settings):
    feed, server = serve.Feed(settings), socket.create_server(("127.0.0.1", 0))
    for work in (feed.make, feed.watch, lambda: feed.accept(server)):
        threading.Thread(target=work, daemon=True).start()
    return server.getsockname()[1]

client._start = start
sys.exit(train.main(sys.argv[1:]))
"""
"""A rank that reads the stream itself, in threads: what a process beside it is compared with."""
JOB = gpt2.ROOT / "training" / "jobs" / "smoke.toml"
DOCUMENT = 2200  # characters: 305 GB in 365 million documents, packed
FIRST = 20  # steps in which the reader still starts
FILES = 4


def write(folder: Path, megabytes: int) -> float:
    """Megabytes of text in the files of C4's form that are there now."""
    texts, size = library(DOCUMENT), 0
    for number in range(FILES + 1):
        kind = f"train.{number:05d}-of-{FILES:05d}" if number < FILES else "validation.00000-of-00001"
        with gzip.open(folder / f"c4-{kind}.json.gz", "wt", compresslevel=6) as file:
            limit = megabytes * 1_000_000 / FILES if number < FILES else 500_000
            part = 0
            for text in texts:
                file.write(json.dumps({"text": text, "url": "https://example.org/"}) + "\n")
                part += len(text.encode())
                if part >= limit:
                    break
            size += part
    return size / 1e6


def alone(token_set: Path, seconds: float = 8.0) -> tuple[float, float]:
    """Tokens per second of the reader, and seconds to its first step from the end of a file on."""
    from stream_reading import documents, packed

    from training.data.stream.documents import Place
    from training.data.stream.packed import Position

    steps = packed(token_set, shuffle=10_000).steps(96, 1024, Position())
    next(steps)
    began, tokens = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        tokens += next(steps).windows[:, :-1].size
    speed = tokens / (time.perf_counter() - began)
    last = list(islice(documents(token_set, shuffle=100).groups(Place()), 40))[-1].begins
    began = time.perf_counter()
    next(packed(token_set, shuffle=100).steps(4, 64, Position(last)))
    return speed, time.perf_counter() - began


def trained(run: Path, data: Path, steps: int, *keys: str, program: str = "") -> list[dict[str, Any]]:
    """The metrics of a run of the smoke job's shape; `program` is executed instead of training.train."""
    length = [f"train.steps={steps}", "train.eval_every=0", f"checkpoint.every={steps}", "train.precision=fp32"]
    places = [f"data.path={data}", f"run.directory={run}"]
    command = [sys.executable, *(["-c", program] if program else ["-m", "training.train"]), str(JOB)]
    done = subprocess.run(
        [*command, *places, *length, *keys], env=gpt2.environment(), cwd=gpt2.ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"bench: {run.name}\n{done.stdout}{done.stderr}")
    return gpt2.lines(run)


def report(name: str, lines: list[dict[str, Any]]) -> None:
    waits = [line["seconds"]["data"] for line in lines[FIRST:]]
    lasted = [sum(line["seconds"].values()) for line in lines[FIRST:]]
    speed = mean(line["tokens_per_s"] for line in lines[FIRST:])
    worst = quantiles(waits, n=100)[98]
    print(
        f"  {name:24} {1000 * mean(waits):8.2f} ms {1000 * worst:8.2f} ms {1000 * max(waits):8.2f} ms"
        f" {sum(waits) / sum(lasted):8.2%} {1000 * mean(lasted):9.1f} ms {speed:10.0f} tok/s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--megabytes", type=int, default=40)
    args = parser.parse_args()
    from training.data import prepare
    from training.data.stream import stage

    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        (home / "c4").mkdir()
        size = write(home / "c4", args.megabytes)
        packed = sum(path.stat().st_size for path in (home / "c4").iterdir()) / 1e6
        options = ["--quiet", "--train-vocab", "8192", "--vocab-sample", "4"]
        assert stage.main([*options, "--out", str(home / "stream"), str(home / "c4")]) == 0
        ranks = home / "stream" / "vocab.tiktoken"
        with (home / "text.jsonl").open("wb") as file:
            for path in sorted((home / "c4").glob("c4-train*")):
                file.write(gzip.decompress(path.read_bytes()))
        prepare.main(["--quiet", "--out", str(home / "set"), "--ranks", str(ranks), str(home / "text.jsonl")])
        speed, resumed = alone(home / "stream")
        print(f"streaming {size:.0f} MB of text ({packed:.0f} MB packed) on {gpt2.features()}")
        print(f"  stream alone: {speed / 1e6:.2f} M tok/s; first step from late in a file: {resumed:.2f} s")
        titles = f"{'wait: mean':>11} {'99 %':>11} {'most':>11} {'share':>8} {'a step':>12}"
        print(f"  {'':24} {titles}")
        keys = ["data.stream=true", f"data.source={home / 'c4'}"]
        streamed = trained(home / "a", home / "stream", args.steps, *keys)
        report("streamed", streamed)
        report("streamed, in threads", trained(home / "c", home / "stream", args.steps, *keys, program=IN_THREADS))
        report("prepared token set", trained(home / "b", home / "set", args.steps))
        print(f"  waits of the first {FIRST} steps: {sum(line['seconds']['data'] for line in streamed[:FIRST]):.2f} s")
        consumed = mean(line["tokens_per_s"] for line in streamed[FIRST:])
        print(f"  the stream makes {speed / consumed:.0f} times as many tokens as this training takes")


if __name__ == "__main__":
    main()
