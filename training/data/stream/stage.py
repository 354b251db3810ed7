"""Make the token set of a job whose text is streamed: vocabulary, validation text and the list of files.

    python -m training.data.stream.stage --out /data/c4 --encoding gpt2 hf:allenai/c4:en

The validation text is the first VALIDATION bytes of the source's validation split. A source without one has documents
of its first file held out, --val-fraction of them, drawn by a fixed seed; those are never trained on. The set is fixed
from then on: training reads no other file than those that are listed here, each with the size that it has now.
Exit codes: 0 done, 1 failed, 2 bad input.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

from training import manifest
from training.data import prepare, vocabulary
from training.data.encode import Division, Encoder, Unit
from training.data.readers import Document, Reading, SourceError
from training.data.stream.documents import HeldOut
from training.data.stream.fetch import Fetcher
from training.data.stream.listing import SEED, StreamListing
from training.data.stream.rows import Row, rows
from training.data.stream.source import HUB, Listing, StreamFile, open_source
from training.data.token_set import little_endian
from training.data.tokenizer import Tiktoken
from training.data.vocabulary import Vocabulary
from training.manifest import SEPARATOR, STREAM, TokenError, dtype_for

VALIDATION = 4 << 20  # bytes of text: about a million tokens


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the token set of the command line; returns the exit code."""
    parser = prepare.parser()
    parser.prog, parser.description, parser.epilog = "python -m training.data.stream.stage", __doc__, None
    options = parser.parse_args(arguments)
    return prepare.exit_code(lambda: locked(options), options.out, "nothing was finished")


def locked(options: argparse.Namespace) -> int:
    """`run`, while no other process makes the same token set; 0."""
    with manifest.locked(options.out):
        run(options)
    return 0


def run(options: argparse.Namespace) -> None:
    """Make the token set. Raises SourceError, VocabularyError, TokenError for what the user has to change."""
    word = located(options.sources)
    known = prepare.given_vocabulary(options)
    source = open_source(word)
    fetcher, found = Fetcher(source), source.list()
    reading = Reading(options.text_key, options.lines, options.invalid)
    listing = StreamListing(word, found.train, reading, None if found.validation else held(fetcher, found, options))
    chosen: dict[str, Any] = {"train_vocab": options.train_vocab, "sample": options.vocab_sample}
    if known:
        chosen = {"name": known.name, "pattern": known.pattern, "sha256": known.digest()}
    settings = {"vocabulary": chosen, "validation": VALIDATION, STREAM: listing.to_json()["sha256"]}
    if is_there(options, settings):
        prepare.report(options, f"{options.out} already exists, complete, from the same input and settings")
        return
    if known is None:
        prepare.report(options, f"training a vocabulary of {options.train_vocab:,} tokens")
        known = vocabulary.train(sample(fetcher, listing, options.vocab_sample * 1_000_000), options.train_vocab)
    write(options.out, known, list(validation(fetcher, found, listing)), listing, settings)
    size = sum(file.size for file in found.train) / 1e6
    prepare.report(
        options, f"{word}: {len(found.train):,} files, {size:,.1f} MB, are read while training; nothing else to prepare"
    )
    held_out = "held out of its first file" if listing.held_out else "its validation split"
    prepare.report(options, f"{options.out}: the vocabulary {known.name}, and validation text from {held_out}")


def located(sources: Sequence[str]) -> str:
    """The one source, a path in full. SourceError for several."""
    if len(sources) != 1:
        raise SourceError(f"{' '.join(sources)}: a stream is of one folder, bucket's folder or hf:NAME, not of several")
    (word,) = sources
    if word.startswith(HUB) or "://" in word:
        return word.rstrip("/")
    if not Path(word).is_dir():
        raise SourceError(f"{word}: {'not a folder' if Path(word).exists() else 'no such folder'}")
    return str(Path(word).resolve())


def held(fetcher: Fetcher, found: Listing, options: argparse.Namespace) -> HeldOut:
    """Which documents of the first file are held out. SourceError if that would be none."""
    word, file = fetcher.source.word, min(found.train, key=lambda file: file.name)
    if not options.val_fraction:
        raise SourceError(f"{word}: no validation split, and data.val_fraction = 0: one of them is needed")
    numbers = [
        row.number for row in islice(rows(fetcher, file, 0, 0, reading_of(options)), ceil(1 / options.val_fraction))
    ]
    if len(found.train) == 1 and len(numbers) < 2:
        raise SourceError(f"{word}: less than two documents, and no validation split")
    stretch = min(1 / options.val_fraction, numbers[-1] + 1 if numbers else 1)
    return HeldOut(file.name, Division(options.val_fraction, SEED, stretch))


def reading_of(options: argparse.Namespace) -> Reading:
    """How the options say that rows are read, with a count of skipped ones of its own."""
    return Reading(options.text_key, options.lines, options.invalid)


def validation(fetcher: Fetcher, found: Listing, listing: StreamListing) -> Iterator[Document]:
    """The documents of the validation text."""
    taken = 0
    for file in found.validation or found.train:
        if listing.held_out and file.name != listing.held_out.name:
            continue
        for row in rows(fetcher, file, 0, 0, listing.reading):
            if listing.held_out is None or listing.held_out.has(file.name, row):
                yield from row.documents
                taken += row.size
            if taken >= VALIDATION:
                return


def sample(fetcher: Fetcher, listing: StreamListing, limit: int) -> Iterator[str]:
    """Training text to learn a vocabulary from: of the first files, up to `limit` bytes."""
    taken = 0
    for file, row in _all_rows(fetcher, listing):
        if not (listing.held_out and listing.held_out.has(file.name, row)):
            yield from (document.text.decode() for document in row.documents)
            taken += row.size
        if taken >= limit:
            return


def _all_rows(fetcher: Fetcher, listing: StreamListing) -> Iterator[tuple[StreamFile, Row]]:
    for file in listing.files:
        yield from ((file, row) for row in rows(fetcher, file, 0, 0, listing.reading))


def is_there(options: argparse.Namespace, settings: dict[str, Any]) -> bool:
    """Whether the set is complete. TokenError for another one, finished or not, unless that is to be replaced."""
    out, work = options.out, options.out / manifest.WORK
    whole, unfinished = (out / manifest.NAME).exists(), (work / "journal.json").exists()  # prepare's
    bare = (out / "train.bin").exists() and not work.exists()  # nanoGPT's
    if not (whole or unfinished or bare):
        return False
    content = manifest.read(out) if whole else {}
    if content.get("settings") == settings and content[STREAM]["source"] == located(options.sources):
        shutil.rmtree(work, ignore_errors=True)  # a kill may have come after the manifest
        return True
    if not options.overwrite:
        raise TokenError(f"{out}: has a token set of other input or settings; --overwrite replaces it")
    (out / manifest.NAME).unlink(missing_ok=True)
    shutil.rmtree(work, ignore_errors=True)
    return False


def write(
    out: Path, known: Vocabulary, documents: list[Document], listing: StreamListing, settings: dict[str, Any]
) -> None:
    """Write the files of the set, its manifest last; until then manifest.WORK says that it is not finished."""
    work = out / manifest.WORK
    work.mkdir(exist_ok=True)
    dtype = dtype_for(known.size)
    encoder = Encoder(Tiktoken(known.encoding()), None, little_endian(dtype), SEED)
    units = [Unit(number, each.text, "val", each.ends, 0) for number, each in enumerate(documents)]
    parts = encoder(units).parts if units else {}
    splits = {}
    for split in manifest.SPLITS:
        part = parts.get(split)
        data = part.tokens.tobytes() if part else b""
        _write(work / f"{split}.bin", data)
        (work / f"{split}.bin").replace(out / f"{split}.bin")
        splits[split] = {
            "file": f"{split}.bin",
            "sha256": hashlib.sha256(data).hexdigest(),
            "tokens": len(part.tokens) if part else 0,
            "documents": part.documents if part else 0,
            "bytes_of_text": part.bytes_of_text if part else 0,
        }
    manifest.publish(out / known.file, known.text())
    encoding = {"name": known.name, "ranks": known.file, "sha256": known.digest(), "pattern": known.pattern}
    content = {
        "format": manifest.FORMAT,
        "dtype": dtype,
        "vocab_size": known.size,
        "encoding": {**encoding, "special": {SEPARATOR: known.separator}},
        "splits": splits,
        "source": {"arguments": [listing.source]},
        "settings": settings,
        STREAM: listing.to_json(),
    }
    manifest.publish(out / manifest.NAME, manifest.render(content))
    shutil.rmtree(work)


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    raise SystemExit(main())
