"""The metrics of a run: metrics.jsonl, one line a step, and accelerate's trackers.

    {"step": 40, "loss": 3.21, "lr": 5.9e-4, "grad_norm": 0.8, "tokens": 655360, "tokens_per_s": 12345.6,
     "peak_share": 0.71, "seconds": {"data": ..., "compute": ..., "communication": ..., "eval": ..., "checkpoint": ...},
     "rank_seconds": [compute of each rank], "time": unix, "val_loss": ..., "val_bits_per_byte": ...}

A masked model, whose loss is of the masked tokens only, has `perplexity` and `val_perplexity`, but no bits per byte.

Of a long run both have the whole curve, thinned: metrics.jsonl in a file of bounded size (`Lines`), the trackers with
about 45,000 of a million steps (`is_tracked`).

`communication` is the time that the step waits after its own last gradient is ready, not what overlaps with the
backward pass. `val_*` are in the lines of steps with a validation. Losses are in nats per token.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from training.keys import JobError

_TRACKED_STEPS = 10_000
"""Steps at the start of a run of which the trackers get every one."""


class Clock:
    """Measures the seconds of a step by phase. The time of a nested measurement counts only for the inner phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = 0.0

    @contextlib.contextmanager
    def time(self, what: str) -> Iterator[None]:
        """Add the seconds of the block to `what`."""
        outer, self._inner = self._inner, 0.0
        start = time.perf_counter()
        try:
            yield
        finally:
            total = time.perf_counter() - start
            self.seconds[what] = self.seconds.get(what, 0.0) + total - self._inner
            self._inner = outer + total

    def move(self, seconds: float, source: str, target: str) -> None:
        """Count seconds as `target` that were measured as `source`."""
        self.seconds[source] = self.seconds.get(source, 0.0) - seconds
        self.seconds[target] = self.seconds.get(target, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """The seconds since the last call, rounded to microseconds."""
        taken, self.seconds = self.seconds, {}
        return {name: round(value, 6) for name, value in taken.items()}


class Lines:
    """Writes metrics.jsonl. Opening it at `step` removes the lines of later steps, which a killed run wrote, so that
    each step is there once.

    A file of more than `limit` bytes is thinned to half of that: every second step stays, or every fourth, and so on,
    and every step with a validation. So a run of any length keeps its whole curve in a file of bounded size.
    """

    def __init__(self, path: Path, step: int, *, limit: int = 64 << 20) -> None:
        self._path, self._limit = path, limit
        if path.exists():
            self._rewrite(lambda line: _step_of(line) <= step)
        self._file = path.open("a", buffering=1)
        self._size = path.stat().st_size

    def write(self, values: Mapping[str, Any]) -> None:
        """Write one line and pass it to the kernel at once, so that a killed process loses none."""
        line = json.dumps(values) + "\n"
        self._file.write(line)
        self._size += len(line)
        if self._size > self._limit:
            self._thin()

    def last(self) -> int:
        """The step of the last line; 0: there is none."""
        lines = self._path.read_text(errors="replace").splitlines()
        return int(_step_of(lines[-1])) if lines else 0

    def after(self, step: int) -> str:
        """The lines of later steps, as text."""
        with self._path.open(errors="replace") as file:
            return "".join(line for line in file if _step_of(line) > step)

    def take(self, text: str) -> None:
        """Add another rank's lines: those of steps that this file does not have yet."""
        last = self.last()
        for line in text.splitlines():
            if _step_of(line) > last:
                self.write(json.loads(line))

    def sync(self) -> None:
        """Wait until the lines are on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file. What was written is the kernel's; `sync` waits until it is on disk."""
        self._file.close()

    def _thin(self) -> None:
        self._file.close()
        stride = 1
        while self._path.stat().st_size > self._limit // 2 and stride < 1 << 30:
            stride *= 2
            self._rewrite(partial(_is_kept, stride))
        self._file = self._path.open("a", buffering=1)
        self._size = self._path.stat().st_size

    def _rewrite(self, is_kept: Callable[[str], bool]) -> None:
        """Keep these lines only, in a new file that replaces the old one when it is complete."""
        temporary = self._path.with_suffix(".tmp")
        with self._path.open(errors="replace") as old, temporary.open("w") as new:
            new.writelines(filter(is_kept, old))
        temporary.replace(self._path)


def last_step(path: Path) -> int:
    """The last step with a whole line in such a file; 0 if there is none."""
    if not path.exists():
        return 0
    with path.open(errors="replace") as file:
        return int(max((step for line in file if (step := _step_of(line)) < float("inf")), default=0))


def _is_kept(stride: int, line: str) -> bool:
    return _step_of(line) % stride == 0 or '"val_loss"' in line


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # an incomplete last line, from a killed run: it is dropped


def check_wandb() -> None:
    """JobError if the wandb package, which Weights & Biases needs, is not installed."""
    if not importlib.util.find_spec("wandb"):
        raise JobError(
            "WANDB_API_KEY is set, but the wandb package is not installed on the head; there:"
            " sudo /opt/trainyard/venv/bin/uv pip install --python /opt/trainyard/venv wandb==0.31.0"
        )


def trackers(run: Path) -> list[Any]:
    """accelerate's trackers: TensorBoard events in run/tensorboard, and Weights & Biases if its key is set. JobError if
    the key is set but wandb is not installed."""
    from accelerate.tracking import TensorBoardTracker, WandBTracker

    found: list[Any] = []
    if importlib.util.find_spec("tensorboard"):
        found.append(TensorBoardTracker("tensorboard", logging_dir=run))
    else:
        print("no TensorBoard events: the tensorboard package is not installed here", flush=True)
    if os.environ.get("WANDB_API_KEY"):
        check_wandb()
        found.append(WandBTracker("trainyard", dir=str(run), name=run.name))
    return found


def is_tracked(line: Mapping[str, Any]) -> bool:
    """Whether the trackers get this step's line: each until `_TRACKED_STEPS`, every second until twice that, every
    fourth until four times that, and so on, and every one with a validation.

    TensorBoard's events are only ever appended, so a long run's are thinned as they come: twice the steps add half of
    `_TRACKED_STEPS`. The step alone decides, so that a resumed run goes on as before.
    """
    stride = 1 << (int(line["step"]) // _TRACKED_STEPS).bit_length()
    return int(line["step"]) % stride == 0 or "val_loss" in line


def flat(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line by name, as trackers take them."""
    numbers = {name: value for name, value in line.items() if isinstance(value, int | float)}
    return {**numbers, **{f"seconds/{name}": value for name, value in line.get("seconds", {}).items()}}


def quality(val_loss: float, masked: bool, bytes_per_token: float | None) -> dict[str, float]:
    """A validation's loss as a number that means something by itself: perplexity for a masked model, else bits per byte
    if the mean bytes per token are known."""
    if masked:
        return {"val_perplexity": perplexity(val_loss)}
    return {"val_bits_per_byte": val_loss / math.log(2) / bytes_per_token} if bytes_per_token else {}


def perplexity(loss: float) -> float:
    """e to the loss, in nats: among how many tokens the model guesses."""
    return math.exp(min(loss, 700.0))  # e^710 is beyond a float


def progress(line: Mapping[str, Any], steps: int, tokens: int) -> str:
    """`step 40/200 loss 3.214 lr 5.9e-04 12345 tok/s 1.2 s/step eta 3m $0.12`"""
    seconds = tokens / line["tokens_per_s"]
    validation = f" val {line['val_loss']:.3f}" if "val_loss" in line else ""
    if "val_bits_per_byte" in line:
        validation += f" ({line['val_bits_per_byte']:.3f} bits per byte)"
    if "val_perplexity" in line:
        validation += f" (perplexity {line['val_perplexity']:.1f})"
    masked = f" perplexity {line['perplexity']:.1f}" if "perplexity" in line else ""
    return (
        f"step {line['step']}/{steps} loss {line['loss']:.3f}{masked} lr {line['lr']:.1e}"
        f" {line['tokens_per_s']:.0f} tok/s {seconds:.2g} s/step eta {_duration(seconds * (steps - line['step']))}"
        f"{spent(os.environ, line['time'])}{validation}"
    )


def spent(environment: Mapping[str, str], now: float) -> str:
    """` $0.12`: what all nodes have cost since the job started; empty if they have no price."""
    price = environment.get("TRAINYARD_USD_PER_HOUR")
    return f" ${float(price) * (now - float(environment['TRAINYARD_BEGAN'])) / 3600:.2f}" if price else ""


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f}s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f}m"
    return f"{seconds / 3600:.1f}h"
