"""Write checkpoints in the background: the step waits only for a copy in memory, which a low-priority thread writes.

There is one save at a time; the next one waits for it. `check` reports a save that failed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training import manifest
from training.checkpoint import files as checkpoint
from training.checkpoint.together import Together
from training.store.mirror import Mirror

_NICENESS = 10
"""Low priority: the thread hashes and writes while the training computes, and has until the next save for it."""
_NOT_IN_BEST = ("optimizer", "rng", "outer")


class Saver:
    """Writes the checkpoints and the best model of a run, one save at a time; a rank has one of it."""

    def __init__(self, run: Path, keep: int, mirror: Mirror | None = None, together: Together | None = None) -> None:
        """`keep` verified checkpoints stay on disk; each is offered to `mirror` as soon as it is on disk. With
        `together` every rank saves its part, and rank 0 does the rest."""
        self.directory = run / "checkpoints"
        self.best = run / "best"
        self.keep = keep
        self.verified: set[int] = set()
        """Steps of this run's checkpoints that were written now, or verified when resuming."""
        self._mirror, self._together = mirror, together
        self._buffers: dict[tuple[str, str], Tensor] = {}
        self._thread: threading.Thread | None = None
        self._failure: checkpoint.CheckpointError | None = None

    def save(self, files: checkpoint.Files, state: Mapping[str, Any], *, step: int | None, best: bool) -> None:
        """Copy the values and return; the thread writes them as the checkpoint of `step` (None: no checkpoint), as the
        best model, or both. Waits for the save before; raises its CheckpointError if it failed."""
        self.finish()
        copied = {name: self._copy(name, content) for name, content in files.items()}
        self._thread = threading.Thread(
            target=self._write, args=(copied, dict(state), step, best), name="checkpoint", daemon=True
        )
        self._thread.start()

    def check(self) -> str:
        """Why a save failed; empty if none did."""
        return str(self._failure or "")

    def finish(self) -> None:
        """Wait for the save in progress; raises the CheckpointError of any save that failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            raise self._failure

    def _copy(self, file: str, content: Mapping[str, Tensor] | bytes) -> Mapping[str, Tensor] | bytes:
        """Copy into buffers that every save reuses: allocating new pages costs more than the copy."""
        if isinstance(content, bytes):
            return content
        copies = {}
        for name, tensor in content.items():
            buffer = self._buffers.get((file, name))
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = self._buffers[file, name] = torch.empty(tensor.shape, dtype=tensor.dtype)
            copies[name] = buffer.copy_(tensor.detach())
        return copies

    def _write(self, files: checkpoint.Files, state: Mapping[str, Any], step: int | None, best: bool) -> None:
        with contextlib.suppress(OSError):  # some systems do not allow it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            if step is not None:
                folder = checkpoint.folder_of(self.directory, step)
                if self._finished(folder, files, state):
                    self.verified.add(step)
                    manifest.publish(self.directory / "latest", f"{step}\n")
                    self._prune(step)
                    if self._mirror is not None:
                        self._mirror.offer("checkpoints", step, folder)
            if best:
                only_model = {name: content for name, content in files.items() if not name.startswith(_NOT_IN_BEST)}
                if self._finished(self.best, only_model, state) and self._mirror is not None:
                    self._mirror.offer("best", state["step"], self.best)
        except checkpoint.CheckpointError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 (reported by `check`; the thread has no caller)
            self._failure = checkpoint.CheckpointError(f"{self.directory}: {error!r}")

    def _finished(self, folder: Path, files: checkpoint.Files, state: Mapping[str, Any]) -> bool:
        """Write a checkpoint; whether it is on this process's disk then, and this process's to look after."""
        if self._together is not None:
            return self._together.write(folder, files, state)
        checkpoint.write(folder, files, state)
        return True

    def _prune(self, newest: int) -> None:
        """Remove damaged checkpoints, and verified ones beyond the newest `keep`."""
        self.verified = set(sorted(self.verified)[-self.keep :])
        for step in checkpoint.steps(self.directory):
            if step not in self.verified and step <= newest:
                checkpoint.remove(checkpoint.folder_of(self.directory, step))
