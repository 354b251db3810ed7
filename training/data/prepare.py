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
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import tiktoken

from training import manifest
from training.data import vocabulary
from training.data.encode import Division, Encoder, batches, in_order, uniform, units
from training.data.engine import EngineError, Gigatoken, Tiktoken
from training.data.prepare_journal import PrepareJournal
from training.data.prepare_options import parser
from training.data.readers import SourceError
from training.data.sources import Corpus, corpus
from training.data.token_set import little_endian
from training.data.vocabulary import SEPARATOR, Vocabulary, VocabularyError
from training.manifest import RANKS, TokenError, dtype_for
from training.progress import Progress, duration


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        return run(options)
    except (SourceError, VocabularyError, TokenError) as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"prepare: {error.filename or options.out}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nprepare: stopped; the same command goes on from here", file=sys.stderr)
        return 130


def run(options: argparse.Namespace) -> int:
    """Prepare the token set. Raises SourceError, VocabularyError, TokenError for what the user has to change."""
    os.environ.setdefault("RAYON_NUM_THREADS", str(options.workers))  # read by tokenizers and gigatoken
    found = corpus(
        options.sources,
        text_key=options.text_key,
        invalid=options.invalid,
        split=options.split,
        revision=options.revision,
        stream=options.stream,
    )
    known = given_vocabulary(options)
    wish = {"train_vocab": options.train_vocab, "sample": options.vocab_sample} if known is None else identity(known)
    settings = {
        "dtype": dtype_for(known.size if known else options.train_vocab),
        "vocabulary": wish,
        "val_fraction": options.val_fraction,
        "seed": options.seed,
    }
    with closing(PrepareJournal(options.out, {**settings, **resume_conditions(found)})) as work:
        if work.occupied() and not options.overwrite:
            check_existing(options.out, found, settings)
            work.clear()  # left if a kill came between writing the manifest and this
            return 0
        division = division_of(found, options)
        work.begin()
        say(options, work.note)
        trained = known or work.vocabulary() or train_vocabulary(found, division, options)
        work.keep_vocabulary(trained)
        tokenise(found, division, trained, work, options)
        if found.changed():
            raise TokenError(f"{options.out}: the source changed while it was read; nothing was finished")
        content = manifest_of(found, trained, work, settings)
        work.finish(content)
    return 0


def resume_conditions(found: Corpus) -> dict[str, Any]:
    """What must be equal, besides the settings, to continue unfinished work."""
    return {
        "source": found.facts.times,
        "text_key": found.reading.text_key,
        "invalid": found.reading.invalid,
        "tiktoken": tiktoken.__version__,
    }


def given_vocabulary(options: argparse.Namespace) -> Vocabulary | None:
    """The vocabulary that the options name; None if it is to be trained. VocabularyError if it cannot be used."""
    if options.train_vocab is not None:
        if options.train_vocab < vocabulary.SMALLEST:
            vocabulary.train([], options.train_vocab)  # raises the error
        return None
    found = vocabulary.read(options.ranks, options.pattern) if options.ranks else vocabulary.named(options.encoding)
    found.encoding()  # an invalid pattern fails before anything is written
    return found


def identity(known: Vocabulary) -> dict[str, Any]:
    """What identifies a vocabulary in the settings."""
    return {"name": known.name, "pattern": known.pattern, "sha256": known.digest()}


def division_of(found: Corpus, options: argparse.Namespace) -> Division:
    """The division into splits; SourceError for a corpus without text, or of a single document."""
    there = found.count(2)
    if not there:
        left_out = found.reading.skipped.count
        raise SourceError(f"{' '.join(options.sources)}: no text" + (f" but {left_out} skipped" if left_out else ""))
    if there == 1 and options.val_fraction:
        raise SourceError(
            f"{' '.join(options.sources)}: a single document, and none would be left to train on; "
            "--val-fraction 0 takes it whole"
        )
    return Division.of(options.val_fraction, options.seed, found.count)


def train_vocabulary(found: Corpus, division: Division, options: argparse.Namespace) -> Vocabulary:
    say(options, f"training a vocabulary of {options.train_vocab:,} tokens")
    return vocabulary.train(sample(found, division, options), options.train_vocab)


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
    began = time.monotonic()
    encoder = chosen_encoder(known, work, options)
    try:
        encode_all(found, division, encoder, work, options)
    except EngineError as error:
        say(options, f"{error}: starting over with {Tiktoken.name}")
        work.start_over(str(error))
        encode_all(found, division, chosen_encoder(known, work, options), work, options)
    for split, facts in work.splits().items():
        text, tokens = facts["bytes_of_text"], facts["tokens"]
        say(options, f"{split:5} {facts['documents']:,} documents, {text / 1e6:.1f} MB of text, {tokens:,} tokens")
    if found.reading.skipped.count:
        say(options, f"{found.reading.skipped.count} left out, not UTF-8: {found.reading.skipped.first} first")
    say(options, f"{known.name}, {work.settings['dtype']}, in {duration(time.monotonic() - began)}: {options.out}")


def chosen_encoder(known: Vocabulary, work: PrepareJournal, options: argparse.Namespace) -> Encoder:
    """An encoder with gigatoken, or with tiktoken if gigatoken cannot be used or has differed on this corpus. Prints
    which."""
    slow = Tiktoken(known.encoding())
    dtype = little_endian(work.settings["dtype"])
    try:
        if work.engine_error:
            raise EngineError(work.engine_error)
        fast = Gigatoken(known, slow.encoding, work.work / RANKS, options.workers)
    except EngineError as error:
        say(options, f"encoding with {slow.name}, which is slower than gigatoken: {error}")
        return Encoder(slow, None, dtype, options.seed)
    say(options, f"encoding with {fast.name}, a sample with {slow.name} too")
    return Encoder(fast, slow, dtype, options.seed)


def encode_all(
    found: Corpus, division: Division, encoder: Encoder, work: PrepareJournal, options: argparse.Namespace
) -> None:
    """Encode the documents that the journal does not have yet, and append them to it. EngineError."""
    progress = Progress(found.facts.bytes, work.journal["cost"], quiet=options.quiet)
    rest = islice(units(found.documents(), division), work.units, None)
    compared = 0
    with closing(in_order(batches(rest, work.units), encoder, options.workers)) as results:
        for encoded in results:
            work.append(encoded)
            compared += encoded.compared
            progress.advance(encoded.cost, encoded.bytes_of_text)
    progress.finish()
    if encoder.reference:
        names = f"{encoder.engine.name} and {encoder.reference.name}"
        say(options, f"{names} made the same tokens of the sample, {compared / 1e6:.2f} MB of text")


def manifest_of(found: Corpus, known: Vocabulary, work: PrepareJournal, settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "format": manifest.FORMAT,
        "dtype": settings["dtype"],
        "vocab_size": known.size,
        "encoding": {
            "name": known.name,
            "ranks": RANKS,
            "sha256": known.digest(),
            "pattern": known.pattern,
            "special": {SEPARATOR: known.separator},
        },
        "splits": work.splits(),
        "source": {**found.describe(), "skipped": found.reading.skipped.count},
        "settings": settings,
    }


def check_existing(folder: Path, found: Corpus, settings: dict[str, Any]) -> None:
    """TokenError if the existing set was made from other input or settings, or before the input changed."""
    content = manifest.read(folder)
    source = {**content["source"], "arguments": [], "skipped": 0}
    same = source == {**found.describe(), "arguments": [], "skipped": 0} and content.get("settings") == settings
    if not same or found.facts.newest > (folder / manifest.NAME).stat().st_mtime_ns:
        raise TokenError(f"{folder}: a token set of other input or settings is there; --overwrite makes it anew")
    print(f"prepare: {folder} is there already, whole, from the same input and settings")


def say(options: argparse.Namespace, line: str) -> None:
    if line and not options.quiet:
        print(f"prepare: {line}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
