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
from typing import Any, Literal

from training.store.mirror_process import STAGING

Kind = Literal["checkpoints", "best"]

STALL_TIMEOUT = 90.0
"""After this many seconds without progress the end of a job no longer waits for the mirror."""
_POLL = 0.5


class Mirror:
    def __init__(self, url: str, run: Path, keep: int, *, resume: bool, say: Callable[[str], None]) -> None:
        """`url` is the run's folder in the bucket, `keep` how many complete checkpoints stay there."""
        self.url = url
        self._staging, self._say = run / STAGING, say
        self._argv = [*_program(), "serve", url, str(run), "--keep", str(keep), *(["--resume"] if resume else [])]
        self._changed = threading.Condition()
        self._waiting: dict[str, Path] = {}
        """By kind, the newest folder that is not in the bucket yet."""
        self._under_way: dict[str, Any] = {}
        self._failed: set[Path] = set()
        """Waiting folders whose last attempt failed; tried again with the next offer."""
        self._last_message = time.monotonic()
        self._process: subprocess.Popen[str] | None = None
        shutil.rmtree(self._staging / "to", ignore_errors=True)  # left by an earlier process

    def offer(self, kind: Kind, step: int, folder: Path) -> None:
        """Queue a complete checkpoint; returns as soon as it is linked. A failure is reported through `say`."""
        aside = self._staging / "to" / kind / f"step-{step:06d}"
        try:
            _link(folder, aside)
        except OSError as error:
            self._say(f"warning: step {step} is not mirrored: {error.filename}: {error.strerror}")
            return
        with self._changed:
            before = self._waiting.get(kind)
            if before not in (None, aside, self._under_way.get("folder")):
                shutil.rmtree(before, ignore_errors=True)
            self._waiting[kind] = aside
            self._failed.clear()
            self._next()

    def finish(self, beat: Callable[[], None]) -> None:
        """Wait until everything is in the bucket, or nothing has moved for STALL_TIMEOUT. Calls `beat` meanwhile."""
        with self._changed:
            self._failed.clear()  # a last attempt
            self._last_message = time.monotonic()
            self._next()
            while self._under_way:
                self._changed.wait(_POLL)
                beat()
                if time.monotonic() - self._last_message > STALL_TIMEOUT:
                    self._say(f"warning: {self.url} does not get on: the last checkpoint is on the nodes alone")
                    break
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        shutil.rmtree(self._staging / "to", ignore_errors=True)

    def _next(self) -> None:
        """Start the next upload unless one is in progress. Called with the lock held."""
        if self._under_way:
            return
        for kind, folder in self._waiting.items():
            if folder not in self._failed:
                self._order({"kind": kind, "folder": str(folder)})
                return

    def _order(self, order: dict[str, Any]) -> None:
        self._under_way = {**order, "folder": Path(order["folder"])}
        self._last_message = time.monotonic()
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # errors come on stdout, one line each
                text=True,
                env=_environment(),
            )
            threading.Thread(target=self._listen, args=(self._process,), name="mirror", daemon=True).start()
        assert self._process.stdin
        with suppress(BrokenPipeError):  # the process ended: the listening thread reports it
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        for line in process.stdout:
            event = json.loads(line)
            with self._changed:
                self._last_message = time.monotonic()
                if "kind" in event:
                    self._done(event["problem"])
        with self._changed:
            if self._under_way and process is self._process:
                self._done(f"its process ended with exit code {process.wait()}")

    def _done(self, problem: str) -> None:
        """End the upload in progress. Called with the lock held."""
        kind, folder = self._under_way["kind"], self._under_way["folder"]
        self._under_way = {}
        if problem:
            what = "best model" if kind == "best" else "checkpoint"
            self._say(f"warning: {what} of {folder.name} is not mirrored, next attempt at the next one: {problem}")
            self._failed.add(folder)
        if not problem and self._waiting.get(kind) == folder:
            del self._waiting[kind]
        if self._waiting.get(kind) != folder:
            shutil.rmtree(folder, ignore_errors=True)
        self._next()
        self._changed.notify_all()


def fetch(url: str, run: Path) -> str:
    """Fetch the newest complete checkpoint and the best model from the mirror into a run directory that has none.
    Returns why it failed, or an empty text. Prints the process's lines."""
    done = subprocess.run(
        [*_program(), "fetch", url, str(run)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=_environment(),
    )
    lines = done.stdout.splitlines()
    for line in lines if done.returncode == 0 else lines[:-1]:
        print(line, flush=True)
    if done.returncode == 0:
        return ""
    return (lines[-1] if lines else f"exit code {done.returncode}").removeprefix("error: ")


def _link(folder: Path, aside: Path) -> None:
    """Hard-link the files of a folder into another one, or copy them if the file system has no links."""
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for path in folder.iterdir():
        try:
            os.link(path, aside / path.name)
        except OSError:
            shutil.copyfile(path, aside / path.name)


def _program() -> list[str]:
    return [sys.executable, "-m", "training.store.mirror_process"]


def _environment() -> dict[str, str]:
    """An environment in which the process imports the same code as this one."""
    here = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (here, os.environ.get("PYTHONPATH", "")) if part)
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
