"""Upload, download and list token sets and checkpoints in a bucket. Runs on a node.

    python -m training.store push URL FOLDER [--overwrite]
    python -m training.store pull URL FOLDER
    python -m training.store list URL             the folders in it, and which are complete
    python -m training.store mark URL NAME        an empty file of this name; prints the names of all that are there
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
from training.store import bucket, transfer
from training.store.bucket import StoreError

SMALL = 1 << 20  # largest number of bytes that `read` prints


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line's command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.store", description="Folders in a bucket.")
    parser.add_argument("command", choices=["push", "pull", "list", "mark", "read"])
    parser.add_argument("url", metavar="URL")
    parser.add_argument("folder", metavar="FOLDER", type=Path, nargs="?")
    parser.add_argument("--overwrite", action="store_true", help="send also the files that are already there")
    args = parser.parse_args(argv)
    if (args.folder is None) != (args.command == "list"):
        parser.error("push and pull take a FOLDER, mark a NAME, read a FILE, list none")
    try:
        print(_run(args), flush=True)
    except StoreError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.code
    return 0


def _run(args: argparse.Namespace) -> str:
    """Run the command; returns what to print."""
    place = bucket.open_folder(args.url)
    if args.command in ("push", "pull"):
        if args.command == "push":
            done = transfer.push(args.folder, place, overwrite=args.overwrite, progress=Progress(label="sent"))
            result = f"{place.url}: complete"
        else:
            done = transfer.pull(place, args.folder, progress=Progress(label="fetched"))
            result = f"{args.folder}: complete, checksums verified"
        return f"{result}; {done.moved / 1e6:.1f} MB moved, {done.kept / 1e6:.1f} MB already present"
    with bucket.plain_errors(place.url):
        if args.command == "list":
            return listing(place)
        if args.command == "mark":
            place.check()
            place.create(str(args.folder), b"")
            return "\n".join(sorted(place.files()))
        return (place.read(str(args.folder), 0, SMALL) or b"").decode(errors="replace").rstrip("\n")


def listing(place: bucket.BucketFolder) -> str:
    """A line for each folder: its name, and `whole` if it is complete. The place itself is `.`"""
    complete = {name: transfer.complete_manifest(place.at(name)) is not None for name in place.folders()}
    if transfer.complete_manifest(place):
        complete = {".": True, **complete}
    if not complete:
        place.check()
    return "\n".join(f"{name}\twhole" if is_complete else name for name, is_complete in complete.items())


if __name__ == "__main__":
    sys.exit(main())
