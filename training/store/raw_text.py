"""Upload the text of a token set to the bucket, as gzipped JSON lines. Runs on the head node.

    python -m training.store.raw_text URL/raw --tokens URL SOURCE... [--text-key KEY] [--invalid HOW] [--lines]

The documents are those that training.data.prepare reads, in its order, in pieces of 128 MB of text: {"text": ...} a
line; with "goes_on": true the next line continues the document. manifest.json, with every piece's size and checksum, is
sent last; until then manifest.json.sending lists what has arrived, and the same command continues after it.
`training.store pull URL/raw FOLDER` downloads it. Exit codes: 0 done, 1 failed, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from itertools import islice, takewhile
from typing import Any

from training import manifest
from training.data.readers import Document, SourceError
from training.data.sources import Corpus, corpus
from training.manifest import NAME
from training.progress import Progress
from training.store import bucket
from training.store.bucket import BucketFolder, StoreError, plain_errors
from training.store.transfer import SENDING, finish
from training.streams import grouped, ordered_map

PIECE = 128 * 1000 * 1000  # bytes of text in one file
AT_ONCE = 3  # pieces that are packed and sent at a time; as many are in memory

Listed = dict[str, dict[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Upload the text of the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.store.raw_text", description="A corpus into a bucket.")
    parser.add_argument("url", metavar="URL")
    parser.add_argument("sources", metavar="SOURCE", nargs="+")
    parser.add_argument("--tokens", metavar="URL", required=True, help="the token set that it is the text of")
    parser.add_argument("--text-key", default="text")
    parser.add_argument("--invalid", default="stop", choices=["stop", "skip", "replace"])
    parser.add_argument("--lines", action="store_true")
    args = parser.parse_args(argv)
    try:
        found = corpus(args.sources, text_key=args.text_key, invalid=args.invalid, lines=args.lines)
        check(found, bucket.open_folder(args.tokens))
        print(summary(push(found, bucket.open_folder(args.url)), args.url), flush=True)
    except (StoreError, SourceError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.code if isinstance(error, StoreError) else 2
    return 0


def check(found: Corpus, tokens: BucketFolder) -> None:
    """StoreError if the token set in the bucket was, by its manifest, made from another text."""
    with plain_errors(tokens.url):
        text = tokens.read(NAME)
    source = json.loads(text).get("source", {}) if text else {}
    own = found.describe()
    for key in ("names_sha256", "bytes", "text_key", "invalid"):
        if key in source and source[key] != own[key]:
            what = f"{key} is {own[key]}, and was {source[key]}"
            raise StoreError(f"{tokens.url} was made from another text than {' '.join(own['arguments'])}: {what}", 2)


def summary(content: dict[str, Any], url: str) -> str:
    """A line for the user about an upload with this manifest: its text and its packed size, in MB."""
    packed = sum(each["bytes"] for each in content["files"].values())
    text, count = content["bytes_of_text"], content["lines"]
    return f"{url}: complete; {text / 1e6:,.2f} MB of text in {count:,} lines, {packed / 1e6:,.2f} MB packed"


def push(found: Corpus, place: BucketFolder) -> dict[str, Any]:
    """Upload the pieces that are not in the bucket yet; returns the manifest. Raises StoreError, SourceError."""
    with plain_errors(place.url):
        place.check()
        done = _already_sent(place, found)
        progress = Progress(found.facts.bytes, sum(each["bytes_of_text"] for each in done.values()), label="raw text")
        with closing(_send_rest(found, place, done)) as sent:
            for name, each in sent:
                done[name] = each
                place.write(SENDING, _record(done, found))
                progress.advance(each["bytes_of_text"])
        if found.changed():
            raise StoreError(f"{place.url}: the text changed while it was read; nothing was finished")
        text = _record(done, found)
        finish(place, done, text)
    return manifest.parse_bytes(text, place.url)


def _already_sent(place: BucketFolder, found: Corpus) -> Listed:
    """The pieces that an earlier push of the same text has sent, up to the first missing one."""
    text = place.read(SENDING)
    place.remove(NAME)
    try:
        content = manifest.parse_bytes(text or b"", place.url)
    except manifest.TokenError:
        return {}
    if content["source"] != found.describe():
        return {}
    sizes = place.files()
    return dict(takewhile(lambda item: sizes.get(item[0]) == item[1]["bytes"], sorted(content["files"].items())))


def _record(done: Listed, found: Corpus) -> bytes:
    totals = {key: sum(each[key] for each in done.values()) for key in ("lines", "bytes_of_text")}
    return manifest.render({"files": done, "source": found.describe(), **totals}).encode()


def _send_rest(found: Corpus, place: BucketFolder, done: Listed) -> Generator[tuple[str, dict[str, Any]], None, None]:
    """Upload the remaining pieces; yields the name and the manifest entry of each, in order, when it has arrived."""

    def send(piece: tuple[int, list[Document]]) -> tuple[str, dict[str, Any]]:
        number, documents = piece
        records = ({"text": each.text.decode(), **({} if each.ends else {"goes_on": True})} for each in documents)
        lines = b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)
        packed = gzip.compress(lines, mtime=0)  # the same text gives the same bytes
        name = f"text-{number:05d}.jsonl.gz"
        place.write(name, packed)
        facts = {"bytes": len(packed), "sha256": hashlib.sha256(packed).hexdigest(), "lines": len(documents)}
        return name, {**facts, "bytes_of_text": sum(len(each.text) for each in documents)}

    rest = islice(found.documents(), sum(each["lines"] for each in done.values()), None)
    pieces = enumerate(grouped(rest, lambda document: len(document.text), PIECE), len(done))
    return ordered_map(send, pieces, AT_ONCE, AT_ONCE)


if __name__ == "__main__":
    sys.exit(main())
