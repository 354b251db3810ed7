"""training.data.prepare against the usual way (datasets.map, tiktoken, concatenate), and its memory.

    python tests/bench/bench_prepare.py [--megabytes 100] [--rounds 3]

Both read the same JSON lines, made of the standard library's source, with the same vocabulary, on all cores, in turns
in one run; the best of the rounds counts. Once in documents of the published job's size, once in whole files, where the
usual way pays its cost of a row less often. Imports are left out of both, and so is training the vocabulary. The ratio
of the processors' time says the same on a machine that does other work meanwhile. The memory is the process' own peak
(there is only one), for corpora of one and of four times the size.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import gpt2

ROOT = Path(__file__).parents[2]
KINDS = {"5 KB documents, as OpenWebText's": 5000, "whole files, 17 KB": 1 << 30}  # characters of a document at most
CORES = len(os.sched_getaffinity(0))

CLOCK = """
import resource, time
def clock():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.perf_counter(), sum(each.ru_utime + each.ru_stime for each in used)
def say(began):
    print(*(now - then for now, then in zip(clock(), began)))
"""

OURS = """
import sys
from training.data import prepare
began = clock()
if prepare.main(["--quiet", *sys.argv[1:]]):
    sys.exit(1)
say(began)
"""

USUAL = """
import dataclasses, sys
import numpy, tiktoken, datasets
from pathlib import Path
from tiktoken_ext.openai_public import r50k_pat_str
from training.data import vocabulary
out, ranks, corpus, cores = sys.argv[1:]
Path(out).mkdir()
datasets.disable_progress_bars()
encoding = dataclasses.replace(vocabulary.read(Path(ranks)), pattern=r50k_pat_str).encoding()
end = encoding.n_vocab - 1
def encode(row):
    ids = encoding.encode_ordinary(row["text"])
    ids.append(end)
    return {"ids": ids, "len": len(ids)}
began = clock()
rows = datasets.load_dataset("json", data_files=corpus, split="train", cache_dir=out + "/cache")
splits = rows.train_test_split(test_size=0.01, seed=1337)
coded = splits.map(encode, remove_columns=["text"], num_proc=int(cores))
for name, part in coded.items():
    total = sum(part["len"])
    file = numpy.memmap(f"{out}/{name}.bin", dtype=numpy.uint16, mode="w+", shape=(total,))
    at, shards = 0, min(64, len(part))
    for number in range(shards):
        shard = part.shard(num_shards=shards, index=number, contiguous=True).with_format("numpy")
        joined = numpy.concatenate(shard["ids"])
        file[at : at + len(joined)] = joined
        at += len(joined)
    file.flush()
say(began)
"""


def library(longest: int) -> Iterator[str]:
    """The source of the standard library, again and again, in documents of this size at most."""
    home = Path(sysconfig.get_path("stdlib"))
    while True:
        for path in sorted(home.rglob("*.py")):
            if "site-packages" not in path.parts:
                try:
                    text = path.read_text(encoding="utf-8")
                except UnicodeDecodeError:
                    continue
                yield from (text[at : at + longest] for at in range(0, len(text), longest))


def corpus(path: Path, megabytes: int, longest: int) -> int:
    """Bytes of text in the JSON lines that are there now."""
    size = 0
    with path.open("w") as file:
        for document in library(longest):
            file.write(json.dumps({"text": document}) + "\n")
            size += len(document.encode())
            if size >= megabytes * 1_000_000:
                return size
    raise AssertionError("the library has no end")


def child(script: str, *arguments: object) -> tuple[float, float, float]:
    """Seconds that it says it took, the processors' seconds, peak memory in MB (of the first process)."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", CLOCK + script, *map(str, arguments)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"bench: a child ended with {process.returncode}")
    wall, processors = output.split()[-2:]
    return float(wall), float(processors), usage.ru_maxrss / 1024


def speed(home: Path, kind: str, longest: int, ranks: Path, options: argparse.Namespace) -> None:
    path = home / f"{longest}.jsonl"
    size = corpus(path, options.megabytes, longest)
    usual, ours = [], []
    for turn in range(options.rounds):
        usual.append(child(USUAL, home / f"usual{longest}-{turn}", ranks, path, CORES)[:2])
        ours.append(child(OURS, "--out", home / f"ours{longest}-{turn}", "--ranks", ranks, path)[:2])
        shutil.rmtree(home / f"usual{longest}-{turn}")
    wall, processors = (min(each[at] for each in usual) / min(each[at] for each in ours) for at in (0, 1))
    ours_speed, usual_speed = (size / 1e6 / min(each[0] for each in way) for way in (ours, usual))
    print(f"  {kind:34} {ours_speed:8.1f} MB/s {usual_speed:8.1f} MB/s {wall:8.2f} {processors:12.2f}", flush=True)


def memory(home: Path, name: str, wish: list[object], options: argparse.Namespace) -> None:
    peaks = [child(OURS, "--out", home / f"{name}{scale}", *wish, home / f"{scale}x.jsonl")[2] for scale in (1, 4)]
    print(f"  {name:34} {peaks[0]:8.0f} MB   {peaks[1]:8.0f} MB   {peaks[1] / peaks[0]:8.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        for scale in (1, 4):
            corpus(home / f"{scale}x.jsonl", scale * options.megabytes, 5000)
        learn: list[object] = ["--train-vocab", 8192, "--vocab-sample", 8]
        child(OURS, "--out", home / "v", *learn, home / "1x.jsonl")
        ranks = home / "v" / "vocab.tiktoken"
        print(f"prepare, {options.megabytes} MB of Python source, {CORES} cores, best of {options.rounds}, in turns")
        print(f"  {gpt2.features()}")
        print(f"  {'':34} {'prepare':>13} {'usual':>13} {'ratio':>8} {'of CPU time':>12}   goal >= 15")
        for kind, longest in KINDS.items():
            speed(home, kind, longest, ranks, options)
        small, large = options.megabytes, 4 * options.megabytes
        print(f"  {'peak memory':34} {small:>8} MB   {large:>8} MB   {'ratio':>8}   goal: flat")
        memory(home, "--ranks", ["--ranks", ranks], options)
        memory(home, "--train-vocab", learn, options)


if __name__ == "__main__":
    main()
