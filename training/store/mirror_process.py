"""The mirror's process: uploads a run's checkpoints to the bucket while the training goes on.

    python -m training.store.mirror_process URL RUN --keep K [--resume]         started by mirror.py; speaks JSON

    URL/run.json                     which run owns the folder: another run of the same name does not use it
    URL/job.toml                     the job as it was last started, for `--resume` on another cluster
    URL/metrics.jsonl.gz             the lines of the steps until the newest checkpoint, or some more
    URL/checkpoints/step-000050/     as on disk, the manifest last; at least two complete ones stay
    URL/best/step-000040/            the best model; the one before is removed when it is complete

It has a low priority, shares only the disk with the training, and ends when the trainer's end closes its stdin.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import queue
import re
import secrets
import shutil
import sys
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from training import manifest, metrics
from training.progress import Progress
from training.store import bucket, transfer
from training.store.bucket import BucketFolder, StoreError
from training.store.packed_lines import PackedLines

CLAIM = "run.json"  # in the bucket
JOB = "job.toml"  # in the bucket and in the run directory
METRICS = "metrics.jsonl"  # in the run directory
METRICS_SENT = f"{METRICS}.gz"  # in the bucket: up to 64 MiB, sent with each checkpoint
LOCAL_CLAIM = "mirror.json"  # in the run directory: the claim as this run made it
STAGING = ".mirror"  # in the run directory: files on the way to the bucket or from it
BEST_KEPT = 1
_NICENESS = 15


class OthersError(StoreError):
    """A mirror that belongs to another run."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Serve the run of the command line, until the trainer has ended."""
    parser = argparse.ArgumentParser(
        prog="python -m training.store.mirror_process", description="A run's mirror in a bucket."
    )
    parser.add_argument("url")
    parser.add_argument("run", type=Path)
    parser.add_argument("--keep", type=int, required=True)
    parser.add_argument("--resume", action="store_true")
    serve(**vars(parser.parse_args(argv)))


def serve(url: str, run: Path, keep: int, resume: bool) -> NoReturn:
    """Read orders {"kind", "folder"} from stdin, one a line, and answer each on stdout with {"kind", "folder",
    "problem"}; an empty problem means success. During an upload, print {"moved": bytes} every few seconds."""
    with contextlib.suppress(OSError):  # some systems do not allow it
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
    orders = queue.SimpleQueue[dict[str, Any]]()
    threading.Thread(target=_read_orders, args=(orders,), daemon=True).start()
    place, lines = None, PackedLines()
    while True:
        order = orders.get()
        try:
            place = place or claim(bucket.open_folder(url), run, resume)
            send(place, order["kind"], Path(order["folder"]), keep, run, lines)
            problem = ""
        except StoreError as error:
            problem = str(error)
        report({**order, "problem": problem})


def _read_orders(orders: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Queue the trainer's orders; exit at once when it has ended, as another process may already serve the run."""
    for line in sys.stdin:
        orders.put(json.loads(line))
    os._exit(0)


def send(place: BucketFolder, kind: str, folder: Path, keep: int, run: Path, packed: PackedLines) -> None:
    """Upload one checkpoint, then remove all but the `keep` newest complete ones, of each its manifest first. The run's
    lines of metrics, `packed` until the last one, go before it: for a whole checkpoint they are there."""
    steps, keep = place.at(kind), BEST_KEPT if kind == "best" else keep
    there = steps.at(folder.name)
    with bucket.plain_errors(place.url):
        _remove_old(steps, folder.name, keep)  # those of uploads that failed may have the room that this one needs
        # A run that went back may do a step again that is there, perhaps as what is there is altered.
        again = transfer.complete_manifest(there) is not None
        if kind == "checkpoints" and (lines := transfer.read_if_exists(run / METRICS)):
            place.write(METRICS_SENT, packed.of(lines))
    transfer.push(folder, there, overwrite=again, trusted=True, progress=_ReportBytes())
    with bucket.plain_errors(place.url):
        _remove_old(steps, folder.name, keep)


def _remove_old(steps: BucketFolder, newest: str, keep: int) -> None:
    """Remove the steps before `newest` that are not complete, and all complete ones but the `keep` newest."""
    kept = 0
    for name in by_step(steps.folders()):
        if _step(name) > _step(newest):
            continue
        if kept < keep and transfer.complete_manifest(steps.at(name)) is not None:
            kept += 1
        elif name != newest:
            steps.remove_folder(name, first=manifest.NAME)


def claim(place: BucketFolder, run: Path, resume: bool) -> BucketFolder:
    """Mark the run's folder in the bucket as this run's; OthersError if it belongs to another run."""
    own = _token(transfer.read_if_exists(run / LOCAL_CLAIM))
    with bucket.plain_errors(place.url):
        found = _token(place.read(CLAIM))
        if found and found != own and (own or not resume):
            raise OthersError(f"{place.url} belongs to another run of that name and is not changed", 2)
        if not found:
            place.check()
            own = own or new_token()
            place.write(CLAIM, json.dumps({"run": run.name, "token": own}).encode() + b"\n")
        if job := transfer.read_if_exists(run / JOB):
            place.write(JOB, job)
    keep_token(run, found or own, place.url)
    return place


def new_token() -> str:
    """What tells a run from all others of its name."""
    return secrets.token_hex(8)


def keep_token(run: Path, token: str, url: str = "") -> None:
    """Note in the run directory with which token the run claims its folder in the bucket."""
    manifest.publish(run / LOCAL_CLAIM, json.dumps({"url": url, "token": token}) + "\n")


def fetch(place: BucketFolder, run: Path, newest: int) -> list[str]:
    """Fetch a run's newest checkpoint from its mirror, if it is of a later step than `newest` (-1: the nodes have
    none), and then the best model, too; returns the checkpoint's name, if there is one. StoreError."""
    if newest >= 0 and not (run / LOCAL_CLAIM).exists():
        print(f"warning: {place.url}: not asked for a newer checkpoint: it may be another run's", flush=True)
        return []
    with bucket.plain_errors(place.url):
        if not place.read(CLAIM):
            place.check()
            if newest < 0:
                print(f"no checkpoint of the run in {place.url}", flush=True)
            return []
    try:
        claim(place, run, resume=True)
    except OthersError as error:
        print(f"warning: {error}", flush=True)
        return []
    step = _fetch_newest(place.at("checkpoints"), run, None, newest)
    if not step:
        return []
    print(f"{step} fetched from {place.url}, checksums verified", flush=True)
    _fetch_newest(place.at("best"), run, run / "best")
    _fetch_metrics(place, run, _step(step))
    return [step]


def _fetch_metrics(place: BucketFolder, run: Path, step: int) -> None:
    """Take the mirror's lines of metrics, if those of the run directory do not reach the fetched step. What is after
    that step is dropped where the lines are opened; a mirror of an older Trainyard's run has none."""
    if metrics.last_step(run / METRICS) >= step:
        return
    with bucket.plain_errors(place.url):
        packed = place.read(METRICS_SENT)
    if packed is None:
        return
    try:
        manifest.publish(run / METRICS, gzip.decompress(packed).decode())
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        print(
            f"warning: {place.url}/{METRICS_SENT} cannot be read, the curve begins after step {step}: {error}",
            flush=True,
        )


def _fetch_newest(place: BucketFolder, run: Path, target: Path | None, newest: int = -1) -> str:
    """Download the newest whole step after `newest` as `target`, or as its own folder in the run's checkpoints. Returns
    its name, empty if there is none. If a step is altered, prints a warning and takes the one before."""
    with bucket.plain_errors(place.url):
        names = [name for name in by_step(place.folders()) if _step(name) > newest]
    for name in names:
        final = target or run / "checkpoints" / name
        staged = run / STAGING / f"from-{'best' if target else 'checkpoints'}" / name
        try:
            with bucket.plain_errors(place.url):
                if transfer.read_manifest(place.at(name)) is None:
                    continue  # an upload that has not ended
            transfer.pull(place.at(name), staged, progress=Progress(label="fetched"))
        except transfer.AlteredError as error:
            print(f"warning: skipped {name} of the mirror: {error}", flush=True)
            continue
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists():
            shutil.rmtree(final)  # damaged, or an older best model
        staged.rename(final)
        manifest.sync_folder(final.parent)
        return name
    return ""


def by_step(names: Sequence[str]) -> list[str]:
    """The names of steps' folders, newest first."""
    return sorted((name for name in names if re.fullmatch(r"step-\d+", name)), key=_step, reverse=True)


def _step(name: str) -> int:
    return int(name.removeprefix("step-"))


def _token(raw: bytes | None) -> str:
    try:
        return str(json.loads(raw or b"{}").get("token", ""))
    except (ValueError, AttributeError):
        return "unreadable"  # differs from every run's token


def report(event: dict[str, Any]) -> None:
    """Tell the trainer: a line of JSON on stdout."""
    print(json.dumps(event), flush=True)


class _ReportBytes(Progress):
    """Reports to the trainer, every few seconds, that bytes are moving."""

    def show(self) -> None:
        report({"moved": self.done})


if __name__ == "__main__":
    main()
