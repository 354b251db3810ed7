"""Make a token set from text: train.bin, val.bin and a manifest, on all cores.

    python -m training.data.prepare --out data/code --train-vocab 1024 /usr/lib/python3.11
    python -m training.data.prepare --out data/openwebtext hf:Skylion007/openwebtext

The same text, settings and seed give the same bytes for any number of workers. Memory does not grow with the corpus.
Killed at any moment, the same command continues; an unfinished set does not open as a token set.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import tiktoken

from training import manifest
from training.data import vocabulary
from training.data.encode import Division, Encoder, batches, uniform, units
from training.data.prepare_journal import PrepareJournal
from training.data.readers import INVALID, SourceError
from training.data.sources import SUFFIXES, WIKITEXT, Corpus, corpus
from training.data.token_set import little_endian
from training.data.tokenizer import EngineError, Gigatoken, Tiktoken
from training.data.vocabulary import NAMES, PATTERNS, Vocabulary, VocabularyError
from training.keys import bounded
from training.manifest import RANKS, SEPARATOR, TokenError, dtype_for
from training.progress import Progress, duration
from training.streams import ordered_map

SOURCES = f"""\
sources:
  FILE                .jsonl: one document a line; .parquet: one a row; anything else is one document
  FOLDER              every {" ".join(SUFFIXES)} below it, by name; of WikiText as
                      published, a folder with {" or ".join(WIKITEXT)}, that file alone
  'GLOB'              every file that matches, whatever it is called; ** goes through folders
  hf:NAME[:CONFIG]    a data set of the Hugging Face hub

exit codes: 0 done, 1 failed (the same command continues), 2 bad input"""


def parser() -> argparse.ArgumentParser:
    """The command line's parser; training.data.stream.stage takes the same options."""
    result = argparse.ArgumentParser(
        prog="python -m training.data.prepare",
        description="Turn text into a token set: train.bin and val.bin in nanoGPT's layout, and a manifest.",
        epilog=SOURCES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, count, fraction = result.add_argument, bounded(int, 1), bounded(float, 0, 0.5)
    add("sources", metavar="SOURCE", nargs="+", help="where the text is, see below")
    add("--out", metavar="DIR", type=Path, required=True, help="the folder that becomes the token set")
    add("--val-fraction", metavar="F", type=fraction, default=0.01, help="of the documents, for validation (0.01)")
    add("--seed", metavar="S", type=int, default=1337, help="draws the validation documents (1337)")
    add("--workers", metavar="N", type=count, default=len(os.sched_getaffinity(0)), help="threads (all cores)")
    add("--overwrite", action="store_true", help="replace a token set of other input or settings")
    add("--quiet", action="store_true", help="print errors only")
    group = result.add_argument_group("vocabulary")
    add = group.add_mutually_exclusive_group().add_argument
    add("--encoding", metavar="NAME", default="gpt2", help=f"{', '.join(NAMES)} (gpt2); fetched once")
    add("--ranks", metavar="FILE", type=Path, help="a .tiktoken rank file, or a tokenizer.json of Llama's kind")
    add("--train-vocab", metavar="N", type=int, help="train a byte-level BPE of N tokens on the text")
    add = group.add_argument
    add("--pattern", metavar="P", default="", help=f"with --ranks: {', '.join(PATTERNS)} or a regex (gpt2)")
    add("--vocab-sample", metavar="MB", type=count, default=64, help="with --train-vocab: text it looks at (64)")
    add = result.add_argument_group("reading").add_argument
    add("--text-key", metavar="KEY", default="text", help="key or column of the text in jsonl, parquet, hf (text)")
    add("--lines", action="store_true", help="each line that is not empty is a document, of files and of rows")
    add("--invalid", choices=INVALID, default="stop", help="what to do with text that is not UTF-8 (stop)")
    add("--split", metavar="NAME", default="train", help="hf: the split to read (train)")
    add("--revision", metavar="REV", default="", help="hf: a branch, tag or commit")
    add("--stream", action="store_true", help="hf: read as it downloads and keep nothing")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare as the command line says; returns the exit code, see `exit_code`."""
    options = parser().parse_args(arguments)
    return exit_code(lambda: run(options), options.out, "the same command continues from here")


def exit_code(work: Callable[[], int], out: Path, stopped: str) -> int:
    """What `work` returns. An error is one line: 2 for what the user has to change, 1 for a file that cannot be read or
    written, 130 for Ctrl-C, whose line ends with `stopped`."""
    try:
        return work()
    except (SourceError, VocabularyError, TokenError) as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"prepare: {error.filename or out}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nprepare: stopped; {stopped}", file=sys.stderr)
        return 130


def run(options: argparse.Namespace) -> int:
    """Prepare the token set. Raises SourceError, VocabularyError, TokenError for what the user has to change."""
    os.environ.setdefault("RAYON_NUM_THREADS", str(options.workers))  # read by tokenizers and gigatoken
    reading = {key: getattr(options, key) for key in ("text_key", "lines", "invalid", "split", "revision", "stream")}
    found = corpus(options.sources, **reading)
    known = given_vocabulary(options)
    chosen: dict[str, Any] = {"train_vocab": options.train_vocab, "sample": options.vocab_sample}
    if known:
        chosen = {"name": known.name, "pattern": known.pattern, "sha256": known.digest()}
    settings = {
        "dtype": dtype_for(known.size if known else options.train_vocab),
        "vocabulary": chosen,
        "val_fraction": options.val_fraction,
        "seed": options.seed,
    }
    # Unfinished work continues only if these are equal, too.
    also = {"text_key": options.text_key, "invalid": options.invalid, "tiktoken": tiktoken.__version__}
    also |= {"documents": "lines"} if options.lines else {}
    with closing(PrepareJournal(options.out, {**settings, **also, "source": found.facts.times})) as work:
        if work.occupied() and not options.overwrite:
            check_existing(options.out, found, settings)
            work.clear()  # a kill may have come between writing the manifest and this
            return 0
        division = division_of(found, options)
        work.begin()
        report(options, work.note)
        trained = known or work.vocabulary()
        if trained is None:
            report(options, f"training a vocabulary of {options.train_vocab:,} tokens")
            trained = vocabulary.train(sample(found, division, options), options.train_vocab)
        work.save_vocabulary(trained)
        tokenise(found, division, trained, work, options)
        if found.changed():
            raise TokenError(f"{options.out}: the source changed while it was read; nothing was finished")
        work.finish(manifest_of(found, trained, work, settings))
    return 0


def given_vocabulary(options: argparse.Namespace) -> Vocabulary | None:
    """The vocabulary that the options name; None if it is to be trained. VocabularyError if it cannot be used."""
    if options.train_vocab is not None:
        if options.train_vocab < vocabulary.SMALLEST:
            vocabulary.train([], options.train_vocab)  # raises the error
        return None
    found = vocabulary.read(options.ranks, options.pattern) if options.ranks else vocabulary.named(options.encoding)
    found.encoding()  # an invalid pattern fails before anything is written
    return found


def division_of(found: Corpus, options: argparse.Namespace) -> Division:
    """The division into splits; SourceError for a corpus without text, or of a single document."""
    count, sources = found.count(2), " ".join(options.sources)
    if not count:
        skipped = found.reading.skipped
        raise SourceError(f"{sources}: no text" + (f" but {skipped} skipped" if skipped else ""))
    if count == 1 and options.val_fraction:
        raise SourceError(f"{sources}: a single document, so none to train on; --val-fraction 0 trains on it")
    return Division.of(options.val_fraction, options.seed, found.count)


def sample(found: Corpus, division: Division, options: argparse.Namespace) -> Iterator[str]:
    """Training text to learn a vocabulary from; spread over the whole corpus if its size is known."""
    limit = options.vocab_sample * 1_000_000
    share = limit / found.facts.bytes if found.facts.bytes else 1.0
    taken = 0
    for index, document in enumerate(found.documents()):
        if taken >= limit:
            return
        if division.split(index) == "train" and (share >= 1 or uniform(options.seed, "vocabulary", index) < share):
            taken += len(document.text)
            yield document.text.decode()


def tokenise(
    found: Corpus, division: Division, known: Vocabulary, work: PrepareJournal, options: argparse.Namespace
) -> None:
    """Write the tokens of all documents. If gigatoken turns out to be wrong, start over with tiktoken."""
    began = time.monotonic()
    try:
        encode_all(found, division, known, work, options)
    except EngineError as error:
        report(options, f"{error}: starting over with {Tiktoken.name}")
        work.restart(str(error))
        work.save_vocabulary(known)
        encode_all(found, division, known, work, options)
    for split, facts in work.splits().items():
        text, tokens = facts["bytes_of_text"], facts["tokens"]
        report(options, f"{split:5} {facts['documents']:,} documents, {text / 1e6:.1f} MB of text, {tokens:,} tokens")
    if found.reading.skipped:
        report(options, f"{found.reading.skipped} skipped, not UTF-8: {found.reading.first_skipped} first")
    report(options, f"{known.name}, {work.settings['dtype']}, in {duration(time.monotonic() - began)}: {options.out}")


def encode_all(
    found: Corpus, division: Division, known: Vocabulary, work: PrepareJournal, options: argparse.Namespace
) -> None:
    """Encode the documents that the journal does not have yet, and append them to it. EngineError."""
    encoder = chosen_encoder(known, work, options)
    progress = Progress(found.facts.bytes, work.journal["cost"], quiet=options.quiet)
    rest = batches(islice(units(found.documents(), division), work.journal["units"], None))
    compared = 0
    with closing(ordered_map(encoder, rest, options.workers, 2 * options.workers + 1)) as results:
        for encoded in results:
            work.append(encoded)
            compared += encoded.compared
            progress.advance(encoded.cost, sum(part.bytes_of_text for part in encoded.parts.values()))
    progress.finish()
    if encoder.reference:
        names = f"{encoder.engine.name} and {encoder.reference.name}"
        report(options, f"{names} made the same tokens of the sample, {compared / 1e6:.2f} MB of text")


def chosen_encoder(known: Vocabulary, work: PrepareJournal, options: argparse.Namespace) -> Encoder:
    """An encoder with gigatoken, or with tiktoken if gigatoken cannot be used or has differed; prints which."""
    slow, dtype = Tiktoken(known.encoding()), little_endian(work.settings["dtype"])
    try:
        if work.engine_error:
            raise EngineError(work.engine_error)
        fast = Gigatoken(known, slow.encoding, work.work / RANKS, options.workers)
    except EngineError as error:
        report(options, f"encoding with {slow.name}, which is slower than gigatoken: {error}")
        return Encoder(slow, None, dtype, options.seed)
    report(options, f"encoding with {fast.name}, a sample with {slow.name} too")
    return Encoder(fast, slow, dtype, options.seed)


def manifest_of(found: Corpus, known: Vocabulary, work: PrepareJournal, settings: dict[str, Any]) -> dict[str, Any]:
    """The manifest of the set, from what the journal has of it; without times, so that the same command makes the same
    bytes."""
    return {
        "format": manifest.FORMAT,
        "dtype": settings["dtype"],
        "vocab_size": known.size,
        "encoding": {
            "name": known.name,
            "ranks": known.file,
            "sha256": known.digest(),
            "pattern": known.pattern,
            "special": {SEPARATOR: known.separator},
        },
        "splits": work.splits(),
        "source": {**found.describe(), "skipped": found.reading.skipped},
        "settings": settings,
    }


def check_existing(folder: Path, found: Corpus, settings: dict[str, Any]) -> None:
    """TokenError if the existing set was made from other input or settings, or before the input changed."""
    content = manifest.read(folder)
    source = {**content["source"], "arguments": [], "skipped": 0}
    same = source == {**found.describe(), "arguments": [], "skipped": 0} and content.get("settings") == settings
    if not same or found.facts.newest > (folder / manifest.NAME).stat().st_mtime_ns:
        raise TokenError(f"{folder}: has a token set of other input or settings; --overwrite replaces it")
    print(f"prepare: {folder} already exists, complete, from the same input and settings")


def report(options: argparse.Namespace, line: str) -> None:
    """Print a line on stderr; nothing if it is empty, or with --quiet."""
    if line and not options.quiet:
        print(f"prepare: {line}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
