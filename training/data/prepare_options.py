"""The command line of `python -m training.data.prepare`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from training.data.readers import INVALID
from training.data.sources import SUFFIXES
from training.data.vocabulary import NAMES, PATTERNS

SOURCES = f"""\
sources:
  FILE                .jsonl: one document a line; .parquet: one a row; anything else is one document
  FOLDER              every {" ".join(SUFFIXES)} below it, by name
  'GLOB'              every file that matches, whatever it is called; ** goes through folders
  hf:NAME[:CONFIG]    a data set of the Hugging Face hub

exit codes: 0 done, 1 failed (the same command goes on from there), 2 bad input"""


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m training.data.prepare",
        description="Turn text into a token set: train.bin and val.bin in nanoGPT's layout, and a manifest.",
        epilog=SOURCES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = result.add_argument
    add("sources", metavar="SOURCE", nargs="+", help="where the text is, see below")
    add("--out", metavar="DIR", type=Path, required=True, help="the folder that becomes the token set")
    add("--val-fraction", metavar="F", type=fraction, default=0.01, help="of the documents, for validation (0.01)")
    add("--seed", metavar="S", type=int, default=1337, help="draws the validation documents (1337)")
    add("--workers", metavar="N", type=positive, default=len(os.sched_getaffinity(0)), help="threads (all cores)")
    add("--overwrite", action="store_true", help="replace a token set of other input or settings")
    add("--quiet", action="store_true", help="print errors only")
    vocabulary_options(result)
    source_options(result)
    return result


def vocabulary_options(result: argparse.ArgumentParser) -> None:
    group = result.add_argument_group("vocabulary")
    one = group.add_mutually_exclusive_group()
    one.add_argument("--encoding", metavar="NAME", default="gpt2", help=f"{', '.join(NAMES)} (gpt2); fetched once")
    one.add_argument("--ranks", metavar="FILE", type=Path, help="a .tiktoken rank file")
    one.add_argument("--train-vocab", metavar="N", type=int, help="train a byte-level BPE of N tokens on the text")
    add = group.add_argument
    add("--pattern", metavar="P", default="", help=f"with --ranks: {', '.join(PATTERNS)} or a regex (gpt2)")
    add("--vocab-sample", metavar="MB", type=positive, default=64, help="with --train-vocab: text it looks at (64)")


def source_options(result: argparse.ArgumentParser) -> None:
    add = result.add_argument_group("reading").add_argument
    add("--text-key", metavar="KEY", default="text", help="key or column of the text in jsonl, parquet, hf (text)")
    add("--invalid", choices=INVALID, default="stop", help="what to do with text that is not UTF-8 (stop)")
    add("--split", metavar="NAME", default="train", help="hf: the split to read (train)")
    add("--revision", metavar="REV", default="", help="hf: a branch, tag or commit")
    add("--stream", action="store_true", help="hf: read as it downloads and keep nothing")


def fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 0.5:
        raise argparse.ArgumentTypeError(f"{text}: from 0 to 0.5")
    return value


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least 1")
    return value
