"""Upload, download and list token sets and checkpoints in a bucket. Runs on a node.

    python -m training.store push URL FOLDER [--overwrite]
    python -m training.store pull URL FOLDER
    python -m training.store list URL             the folders there, and which are complete
    python -m training.store read URL FILE        a small text file; prints nothing if it does not exist

URL: s3://BUCKET/..., abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/..., file:///...; see training.store.bucket. Killed
at any moment, the same command continues. Exit codes: 0 done, 1 failed, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from training.progress import Progress
from training.store import bucket, download, transfer
from training.store.bucket import StoreError

SMALL = 1 << 20
"""Largest number of bytes that `read` prints."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m training.store", description="Folders in a bucket.")
    parser.add_argument("command", choices=["push", "pull", "list", "read"])
    parser.add_argument("url", metavar="URL")
    parser.add_argument("folder", metavar="FOLDER", type=Path, nargs="?")
    parser.add_argument("--overwrite", action="store_true", help="send also what is there already")
    args = parser.parse_args(argv)
    if (args.folder is None) != (args.command == "list"):
        parser.error("push and pull take a FOLDER, read takes a FILE, list takes none")
    try:
        print(_run(args), flush=True)
    except StoreError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.code
    return 0


def _run(args: argparse.Namespace) -> str:
    """Run the command; returns what to print."""
    place = bucket.place(args.url)
    if args.command == "list":
        with bucket.plain_errors(place.url):
            return "\n".join(listing(place))
    if args.command == "read":
        with bucket.plain_errors(place.url):
            return (place.read(str(args.folder), 0, SMALL) or b"").decode(errors="replace").rstrip("\n")
    if args.command == "push":
        done = transfer.push(args.folder, place, overwrite=args.overwrite, progress=Progress(label="sent"))
        return f"{place.url}: whole; {_megabytes(done)}"
    done = download.pull(place, args.folder, progress=Progress(label="fetched"))
    return f"{args.folder}: whole, checksums verified; {_megabytes(done)}"


def listing(place: bucket.Place) -> list[str]:
    """A line for each folder: its name, and `whole` if it has a manifest and all files of it. The place itself is
    `.`"""
    lines = [
        f"{name}\t{'whole' if transfer.complete_manifest(place.at(name)) else ''}".rstrip() for name in place.folders()
    ]
    if transfer.complete_manifest(place):
        lines.insert(0, ".\twhole")
    if not lines:
        place.check()
    return lines


def _megabytes(done: transfer.Moved) -> str:
    return f"{done.moved / 1e6:.1f} MB moved, {done.kept / 1e6:.1f} MB were there"


if __name__ == "__main__":
    sys.exit(main())
