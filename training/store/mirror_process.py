"""The mirror's own process: sends a run's checkpoints to the bucket, beside the training and apart from it.

    python -m training.store.mirror_process serve URL RUN --keep K [--resume]   started by mirror.py; speaks JSON
    python -m training.store.mirror_process fetch URL RUN        the newest whole checkpoint and the best model

    URL/run.json                     whose folder it is: a run never touches another one's of the same name
    URL/job.toml                     the job as it was started last: what `--resume` on another cluster goes on with
    URL/checkpoints/step-000050/     as on disk, the manifest last; at least two whole ones stay
    URL/best/step-000040/            the best model; the one before goes when it is whole

A process of its own, of low priority, so that the training shares nothing with it but the disk. It ends with the
trainer, whose end closes its stdin.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training import manifest
from training.store import bucket, download, transfer
from training.store.bucket import Place, StoreError

CLAIM = "run.json"
"""In the bucket."""
JOB = "job.toml"
"""In both."""
LOCAL_CLAIM = "mirror.json"
"""In the run directory: the same, as this run knows it."""
STAGING = ".mirror"
"""In the run directory: what is on its way, to the bucket or from it."""
BEST_KEPT = 1
_NICENESS = 15
_REPORT_EVERY = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m training.store.mirror_process", description="A run's mirror in a bucket."
    )
    parser.add_argument("command", choices=["serve", "fetch"])
    parser.add_argument("url")
    parser.add_argument("run", type=Path)
    parser.add_argument("--keep", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args(argv)
    if args.command == "serve":
        serve(args.url, args.run, args.keep, args.resume)
        return 0
    try:
        fetch(bucket.place(args.url), args.run)
    except StoreError as error:
        print(f"error: {error}", flush=True)
        return error.code
    return 0


def serve(url: str, run: Path, keep: int, resume: bool) -> None:
    """Line by line: {"kind", "folder"} comes, {"kind", "folder", "problem"} goes when it is in the bucket or is not;
    meanwhile {"moved": bytes}."""
    with contextlib.suppress(OSError):  # not allowed everywhere, and only a kindness
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
    place = None
    for order in _orders():
        try:
            place = place or claim(bucket.place(url), run, resume)
            send(place, order["kind"], Path(order["folder"]), keep)
            problem = ""
        except StoreError as error:
            problem = str(error)
        report({**order, "problem": problem})


def _orders() -> Any:
    """The trainer's orders. Once it is gone, nothing more is sent: its successor may be at work already."""
    waiting: list[dict[str, Any]] = []
    there = threading.Condition()

    def listen() -> None:
        for line in sys.stdin:
            with there:
                waiting.append(json.loads(line))
                there.notify()
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        with there:
            there.wait_for(lambda: waiting)
            order = waiting.pop(0)
        yield order


def send(place: Place, kind: str, folder: Path, keep: int) -> None:
    """One checkpoint; when it is whole there, the older ones that are more than enough go."""
    transfer.push(folder, place.at(kind).at(folder.name), trusted=True, progress=_ReportBytes())
    with bucket.plain_errors(place.url):
        prune(place.at(kind), folder.name, BEST_KEPT if kind == "best" else keep)


def prune(place: Place, newest: str, keep: int) -> None:
    """Of the steps up to the newest, so many that are whole stay. A step's manifest goes first: no half looks whole."""
    names = [name for name in by_step(place.folders()) if _step(name) <= _step(newest)]
    kept = 0
    for name in names:
        if kept < keep:
            kept += transfer.complete_manifest(place.at(name)) is not None
            continue
        files = place.at(name).files()
        for file in sorted(files, key=lambda file: file != manifest.NAME):
            place.at(name).remove(file)


def claim(place: Place, run: Path, resume: bool) -> Place:
    """The run's folder in the bucket, marked as its own; a StoreError where it is another run's."""
    own = _token(_bytes(run / LOCAL_CLAIM))
    with bucket.plain_errors(place.url):
        there = _token(place.read(CLAIM))
        if there and there != own and (own or not resume):
            raise StoreError(f"{place.url} is another run's of that name: it stays as it is", 2)
        if not there:
            place.check()
            own = own or secrets.token_hex(8)
            place.write(CLAIM, json.dumps({"run": run.name, "token": own}).encode() + b"\n")
        if (run / JOB).exists():
            place.write(JOB, (run / JOB).read_bytes())
    manifest.publish(run / LOCAL_CLAIM, json.dumps({"url": place.url, "token": there or own}) + "\n")
    return place


def fetch(place: Place, run: Path) -> None:
    """What the bucket has of a run whose own directory has nothing whole."""
    with bucket.plain_errors(place.url):
        if not place.read(CLAIM):
            place.check()
            print(f"no checkpoint of it in {place.url}", flush=True)
            return
    claim(place, run, resume=True)
    step = fetch_newest(place.at("checkpoints"), run / STAGING, run / "checkpoints")
    if step:
        print(f"{step} fetched from {place.url}, checksums verified", flush=True)
        fetch_newest(place.at("best"), run / STAGING, run / "best", itself=True)


def fetch_newest(place: Place, staging: Path, target: Path, *, itself: bool = False) -> str:
    """Brings the newest step that is whole: into the target folder, or as the target `itself`. Its name; empty: there
    is none. One that turns out to be altered is told of, and the one before is taken."""
    with bucket.plain_errors(place.url):
        names = by_step(place.folders())
    for name in names:
        with bucket.plain_errors(place.url):
            if transfer.complete_manifest(place.at(name)) is None:
                continue
        coming = staging / f"from-{target.name}" / name
        try:
            download.pull(place.at(name), coming, progress=transfer.ProgressLines("fetched"))
        except transfer.AlteredError as error:
            print(f"warning: skipped {name} of the mirror: {error}", flush=True)
            continue
        final = target if itself else target / name
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists():
            shutil.rmtree(final)  # it is not whole, or it would not be fetched
        coming.rename(final)
        manifest.sync_folder(final.parent)
        return name
    return ""


def by_step(names: Sequence[str]) -> list[str]:
    """The steps' folders, newest first."""
    return sorted((name for name in names if _step(name) >= 0), key=_step, reverse=True)


def _step(name: str) -> int:
    number = name.removeprefix("step-")
    return int(number) if number != name and number.isdigit() else -1


def _token(raw: bytes | None) -> str:
    try:
        return str(json.loads(raw or b"{}").get("token", ""))
    except (ValueError, AttributeError):
        return "unreadable"  # nobody's: it is not taken for one's own


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def report(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


class _ReportBytes:
    """That something moves, now and then."""

    def __init__(self) -> None:
        self._bytes, self._reported, self._lock = 0, time.monotonic(), threading.Lock()

    def start(self, total: int, done: int) -> None:
        return

    def moved(self, count: int) -> None:
        with self._lock:
            self._bytes += count
            if time.monotonic() - self._reported > _REPORT_EVERY:
                self._reported = time.monotonic()
                report({"moved": self._bytes})


if __name__ == "__main__":
    sys.exit(main())
