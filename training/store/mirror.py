"""The mirror of a run, the trainer's side: hands checkpoints to a process that uploads them in the background.

A checkpoint is hard-linked into the mirror's own folder, so that the trainer may remove it from the run directory at
any time; mirror_process.py uploads it. If several wait, only the newest is sent. A failure is reported and the training
continues: the next attempt is at the next checkpoint, the last one at the end of the job.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Literal

from training.store import bucket, mirror_process

Kind = Literal["checkpoints", "best"]

STALL_TIMEOUT = 90.0  # after this many seconds without progress the end of a job no longer waits for the mirror
_POLL = 0.5
_MARGIN = 5.0  # so many seconds before its process is killed, or its node taken, the end no longer waits either
SAY = 3.0
"""Seconds after which a run that begins says that it waits for its bucket's first answer."""
ANSWER = 30.0
"""Seconds that it waits for that, if the nodes have a checkpoint; else twice as long, as it needs one from there. The
cloud's library alone may try for minutes, at first for the machine's identity."""


class Mirror:
    """A run's mirror: `offer` each checkpoint, `finish` at the end. A failed upload is reported and does not end the
    job."""

    def __init__(self, url: str, run: Path, keep: int, *, resume: bool, say: Callable[[str], None]) -> None:
        """`url` is the run's folder in the bucket, `keep` how many complete checkpoints stay there."""
        self.url = url
        self._links, self._say = run / mirror_process.STAGING / "to", say
        self._argv = [sys.executable, "-m", mirror_process.__name__, url, str(run), "--keep", str(keep)]
        self._argv += ["--resume"] if resume else []
        self._changed = threading.Condition()
        self._waiting: dict[str, Path] = {}  # by kind, the newest folder that is not in the bucket yet
        self._failed: set[Path] = set()  # waiting folders whose last attempt failed; tried again with the next offer
        self._uploading: Path | None = None
        self._sent = ""  # the newest checkpoint that was sent
        self._last_message = time.monotonic()
        self._process: subprocess.Popen[str] | None = None
        shutil.rmtree(self._links, ignore_errors=True)  # of an earlier process
        threading.Thread(target=self._work, name="mirror", daemon=True).start()

    def offer(self, kind: Kind, step: int, folder: Path) -> None:
        """Queue a complete checkpoint; returns as soon as it is linked. A failure is reported through `say`."""
        link = self._links / kind / f"step-{step:06d}"
        try:
            _link(folder, link)
        except OSError as error:
            self._say(f"warning: step {step} is not mirrored: {error.filename}: {error.strerror}")
            return
        with self._changed:
            before = self._waiting.get(kind)
            if before not in (None, link, self._uploading):
                shutil.rmtree(before, ignore_errors=True)
            self._waiting[kind] = link
            self._failed.clear()
            self._changed.notify_all()

    def finish(self, beat: Callable[[], None], left: Callable[[], float]) -> None:
        """Wait until everything is in the bucket, nothing has moved for STALL_TIMEOUT, or only _MARGIN seconds are
        `left`; what is not there then is said. Calls `beat` meanwhile."""
        with self._changed:
            self._failed.clear()  # a last attempt
            self._last_message = time.monotonic()
            self._changed.notify_all()
            while self._next():
                self._changed.wait(_POLL)
                beat()
                stuck = time.monotonic() - self._last_message > STALL_TIMEOUT
                if stuck or left() < _MARGIN:
                    self._say_unsent("the upload is stuck" if stuck else "no time is left for the upload")
                    break
            self._waiting.clear()
            process = self._process
        if process is not None:
            process.kill()
            process.wait()
        shutil.rmtree(self._links, ignore_errors=True)

    def _say_unsent(self, why: str) -> None:
        """Called with the lock held, while something waits."""
        unsent = " and ".join(_called(kind, folder) for kind, folder in self._waiting.items())
        there = f"the newest that was sent is {self._sent}" if self._sent else "none was sent before"
        self._say(f"warning: {self.url}: {why}: {unsent} on the nodes only; {there}")

    def _next(self) -> tuple[str, Path] | None:
        """Kind and folder of the next upload, or of the one in progress. Called with the lock held."""
        return next((item for item in self._waiting.items() if item[1] not in self._failed), None)

    def _work(self) -> None:
        """Upload what waits, one folder at a time."""
        while True:
            with self._changed:
                self._changed.wait_for(self._next)
                kind, folder = self._next() or ("", Path())
                self._uploading, self._last_message = folder, time.monotonic()
            problem = self._upload({"kind": kind, "folder": str(folder)})
            with self._changed:
                self._uploading = None
                newest = self._waiting.get(kind) == folder
                if problem and self._waiting:
                    what = f"{_called(kind, folder)} is not mirrored"
                    self._say(f"warning: {what}, next attempt at the next one: {problem}")
                    self._failed.add(folder)
                elif newest:
                    del self._waiting[kind]
                if not problem and kind == "checkpoints":
                    self._sent = folder.name
                if not (problem and newest):
                    shutil.rmtree(folder, ignore_errors=True)
                self._changed.notify_all()

    def _upload(self, order: dict[str, str]) -> str:
        """Have the process upload a folder; returns why it failed, or an empty text."""
        if self._process is None or self._process.poll() is not None:
            code = str(Path(__file__).resolve().parents[2])  # the process imports the same code as this one
            path = os.pathsep.join(filter(None, (code, os.environ.get("PYTHONPATH"))))
            environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
            try:  # errors come on stdout, one line each
                self._process = subprocess.Popen(
                    self._argv, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True, env=environment
                )
            except OSError as error:
                return f"its process cannot be started: {error.strerror}"
        process = self._process
        assert process.stdin and process.stdout
        with suppress(BrokenPipeError):  # the process ended: its stdout ends as well
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            self._last_message = time.monotonic()
            event = json.loads(line)
            if "kind" in event:
                return str(event["problem"])
        return f"its process ended with exit code {process.wait()}"


def _called(kind: str, folder: Path) -> str:
    return f"{'best model' if kind == 'best' else 'checkpoint'} of {folder.name}"


def begin(run: Path) -> None:
    """A run begins from nothing: whatever is in a bucket under its name is another run's, also after a restart."""
    mirror_process.keep_token(run, mirror_process.new_token())


def fetch(url: str, run: Path, newest: int, fetched: list[str]) -> str:
    """Fetch a run's newest checkpoint, if it is of a later step than `newest` (-1: the nodes have none), and the best
    model with it; adds to `fetched` what was. Returns why it failed, or empty."""
    try:
        fetched += mirror_process.fetch(_answering(url, newest), run, newest)
    except bucket.StoreError as error:
        return str(error)
    return ""


def _answering(url: str, newest: int) -> bucket.BucketFolder:
    """The run's folder, once its bucket has answered; `newest` as in `fetch`. StoreError if that takes too long."""
    seconds = ANSWER if newest >= 0 else 2 * ANSWER
    found: list[bucket.BucketFolder | bucket.StoreError] = []

    def ask() -> None:
        try:
            place = bucket.open_folder(url)
            with bucket.plain_errors(url):
                place.read(mirror_process.CLAIM)
            found.append(place)
        except bucket.StoreError as error:
            found.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(SAY)
    if not found:
        have = f"; without an answer it goes on from step {newest}" if newest >= 0 else ""
        print(f"waiting for {url} to say which checkpoints it has, for {seconds:.0f} s at most{have}", flush=True)
        asking.join(max(0.0, seconds - SAY))
    if not found:
        raise bucket.StoreError(f"{url}: no answer in {seconds:.0f} s")
    if isinstance(found[0], bucket.StoreError):
        raise found[0]
    return found[0]


def _link(folder: Path, link: Path) -> None:
    """Hard-link the files of a folder into another one, or copy them if the file system has no links."""
    shutil.rmtree(link, ignore_errors=True)
    link.mkdir(parents=True)
    for path in folder.iterdir():
        try:
            os.link(path, link / path.name)
        except OSError:
            shutil.copyfile(path, link / path.name)
