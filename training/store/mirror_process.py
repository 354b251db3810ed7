"""The mirror's process: uploads a run's checkpoints to the bucket while the training goes on.

    python -m training.store.mirror_process serve URL RUN --keep K [--resume]   started by mirror.py; speaks JSON
    python -m training.store.mirror_process fetch URL RUN        the newest complete checkpoint and the best model

    URL/run.json                     which run owns the folder: another run of the same name does not write to it
    URL/job.toml                     the job as it was last started, for `--resume` on another cluster
    URL/checkpoints/step-000050/     as on disk, the manifest last; at least two complete ones stay
    URL/best/step-000040/            the best model; the one before is removed when it is complete

It has a low priority and shares only the disk with the training. It ends when the trainer ends, which closes its
stdin.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training import manifest
from training.progress import Progress
from training.store import bucket, download, transfer
from training.store.bucket import Place, StoreError

CLAIM = "run.json"
"""In the bucket."""
JOB = "job.toml"
"""In the bucket and in the run directory."""
LOCAL_CLAIM = "mirror.json"
"""In the run directory: the claim as this run made it."""
STAGING = ".mirror"
"""In the run directory: files on the way to the bucket or from it."""
BEST_KEPT = 1
_NICENESS = 15


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
    """Read orders {"kind", "folder"} from stdin, one a line, and answer each on stdout with {"kind", "folder",
    "problem"}; an empty problem means success. During an upload, print {"moved": bytes} every few seconds."""
    with contextlib.suppress(OSError):  # some systems do not allow it
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
    """The trainer's orders. When the trainer has ended, the process exits at once, as the run may already have been
    restarted with another mirror process."""
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
    """Upload one checkpoint, then remove the oldest ones beyond `keep`."""
    transfer.push(folder, place.at(kind).at(folder.name), trusted=True, progress=_ReportBytes())
    with bucket.plain_errors(place.url):
        prune(place.at(kind), folder.name, BEST_KEPT if kind == "best" else keep)


def prune(place: Place, newest: str, keep: int) -> None:
    """Keep the `keep` newest complete steps up to `newest`. A step's manifest is removed first, so that a partly
    removed step does not look complete."""
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
    """Mark the run's folder in the bucket as this run's; StoreError if it belongs to another run."""
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
    """Fetch a run's newest checkpoint and best model from its mirror, if it has any. StoreError."""
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
    """Download the newest complete step into `target`, or as `target` if `itself`. Returns its name, empty if there is
    none. If a step is altered, prints a warning and takes the one before."""
    with bucket.plain_errors(place.url):
        names = by_step(place.folders())
    for name in names:
        with bucket.plain_errors(place.url):
            if transfer.complete_manifest(place.at(name)) is None:
                continue
        coming = staging / f"from-{target.name}" / name
        try:
            download.pull(place.at(name), coming, progress=Progress(label="fetched"))
        except transfer.AlteredError as error:
            print(f"warning: skipped {name} of the mirror: {error}", flush=True)
            continue
        final = target if itself else target / name
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists():
            shutil.rmtree(final)  # it must be damaged, or nothing would be fetched
        coming.rename(final)
        manifest.sync_folder(final.parent)
        return name
    return ""


def by_step(names: Sequence[str]) -> list[str]:
    """The names of steps' folders, newest first."""
    return sorted((name for name in names if _step(name) >= 0), key=_step, reverse=True)


def _step(name: str) -> int:
    number = name.removeprefix("step-")
    return int(number) if number != name and number.isdigit() else -1


def _token(raw: bytes | None) -> str:
    try:
        return str(json.loads(raw or b"{}").get("token", ""))
    except (ValueError, AttributeError):
        return "unreadable"  # differs from every run's token


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def report(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


class _ReportBytes(Progress):
    """Reports to the trainer, every few seconds, that bytes are moving."""

    def show(self) -> None:
        report({"moved": self.done})


if __name__ == "__main__":
    sys.exit(main())
