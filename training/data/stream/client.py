"""A rank's side of a stream: rank 0 starts the process that reads it; every rank takes its windows of each step."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from training import job as jobs
from training.data import token_set
from training.data.stream import serve
from training.data.stream.listing import StreamListing
from training.keys import JobError

if TYPE_CHECKING:
    from training.data.token_set import TokenSet
    from training.job import Job
    from training.parallel.ranks import Ranks

Array: TypeAlias = npt.NDArray[Any]

_POLL = 0.5  # seconds between two heartbeats while a rank waits
_SILENT = 60.0  # seconds without a sign of life after which the process counts as lost
_START = 60.0  # seconds that the process has to start, and a rank to connect


class StreamError(RuntimeError):
    """The source cannot be read: the same line on every rank."""


class StreamedWindows:
    """Windows of `block` tokens and the next one, in the order in which the stream has them. See data.windows."""

    def __init__(self, connection: socket.socket, block: int, dtype: str, where: str, beat: Callable[[], None]) -> None:
        """`where` names the process that reads; `beat` is called twice a second while a rank waits for it."""
        self.block, self.width = block, block + 1
        self.position: dict[str, Any] | None = None
        """Where the stream goes on after the windows that were read last: what a checkpoint keeps."""
        self._connection, self._dtype, self._where, self._beat = connection, np.dtype(dtype), where, beat
        connection.settimeout(_POLL)

    def batch(self, size: int, seed: int, step: int) -> Array:
        """Names of the windows of a step; `read` takes them in this order, whatever they are called."""
        return np.arange(step * size, (step + 1) * size, dtype=np.int64)

    def evaluation(self, count: int) -> Array:
        raise NotImplementedError("a stream's validation text is in its token set")

    def tokens(self, chosen: Array) -> Array:
        return np.full(len(chosen), self.block)

    def read(self, chosen: Array) -> Array:
        """This rank's windows of the next step; waits until they are there. StreamError if they cannot be read."""
        while True:
            head = json.loads(self._receive(serve.LENGTH.unpack(self._receive(serve.LENGTH.size))[0]))
            body = self._receive(head["bytes"])
            if "error" in head:
                raise StreamError(f"data.source = {head['error']}")
            if "position" in head:
                self.position = head["position"]
                return np.frombuffer(body, self._dtype).reshape(len(chosen), self.width).astype(np.int64)

    def _receive(self, count: int) -> bytes:
        data, heard = bytearray(), time.monotonic()
        while len(data) < count:
            try:
                part = self._connection.recv(min(count - len(data), 1 << 20))
            except TimeoutError:
                self._beat()
                if time.monotonic() - heard > _SILENT:
                    raise OSError(f"{self._where} is silent for {_SILENT:.0f} s") from None
                continue
            except OSError as error:
                raise OSError(f"{self._where} is lost: {error.strerror}") from None
            if not part:
                raise OSError(f"{self._where} has ended")
            data += part
            heard = time.monotonic()
        return bytes(data)


def opened(
    job: Job, data: TokenSet, saved: dict[str, Any] | None, ranks: Ranks, beat: Callable[[], None]
) -> StreamedWindows:
    """Start the process on rank 0's node and connect every rank to it. `saved` is a checkpoint's `stream`, see
    `to_save`. Collective. JobError for a checkpoint of another order, OSError if there is no process."""
    position = _checked(job, saved)
    started: dict[str, Any] = {"port": 0, "secret": secrets.token_hex(serve.SECRET // 2)}
    reason = ""
    if ranks.is_first:
        try:
            started["port"] = _start({**_settings(job, data, position, ranks), "secret": started["secret"]})
        except (OSError, ValueError) as error:
            reason = f"the reader of data.source did not start: {error}"
    if ranks.size > 1:
        reason = ranks.failures(reason)
        started = json.loads(ranks.broadcast_bytes(json.dumps(started).encode(), 0))
    if reason:
        raise StreamError(reason)
    where = f"the reader of data.source, a process on {ranks.nodes[0]},"
    host = "127.0.0.1" if ranks.is_first else os.environ["MASTER_ADDR"]
    try:
        connection = _connected(host, started["port"])
        connection.sendall(f"{started['secret']}{ranks.rank:06d}".encode())
    except OSError as error:
        raise OSError(f"{where} cannot be reached at {host}: {error}") from None
    dtype = token_set.little_endian(data.manifest["dtype"])
    return StreamedWindows(connection, job.model.block_size, dtype, where, beat)


def _connected(host: str, port: int) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, serve.BUFFER)  # only before it is connected
    connection.settimeout(_START)
    connection.connect((host, port))
    return connection


def to_save(job: Job, position: dict[str, Any] | None) -> dict[str, Any]:
    """What a checkpoint keeps of a stream: the position, and the settings that it belongs to."""
    return {"position": position, "seed": job.train.seed, "shuffle": job.data.shuffle}


def _checked(job: Job, saved: dict[str, Any] | None) -> dict[str, Any] | None:
    """The position in a checkpoint's `stream`; None: the beginning. JobError if the order is another one now."""
    if saved is None:
        return None
    for key, now in (("train.seed", job.train.seed), ("data.shuffle", job.data.shuffle)):
        before = saved[key.partition(".")[2]]
        if now != before:
            raise JobError(f"{key} = {now}; allowed: {before}, as in this run's checkpoints")
    position: dict[str, Any] | None = saved["position"]
    return position


def _settings(job: Job, data: TokenSet, position: dict[str, Any] | None, ranks: Ranks) -> dict[str, Any]:
    """What the process has to know, but for the secret."""
    listing = StreamListing.of(data.manifest, str(data.path))
    return {
        "data": str(data.path.absolute()),
        "source": listing.source,
        "seed": job.train.seed,
        "shuffle": job.data.shuffle,
        "timeout": job.data.timeout,
        "windows": job.windows,
        "block": job.model.block_size,
        "shares": [jobs.share(job.windows, rank, ranks.size) for rank in range(ranks.size)],
        "position": position,
        "alone": len(set(ranks.nodes)) == 1,
    }


def _start(settings: dict[str, Any]) -> int:
    """Start the process; returns its port. It ends with this one, whose end closes its stdin."""
    code = str(Path(__file__).resolve().parents[3])  # the process imports the same code as this one
    path = os.pathsep.join(filter(None, (code, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", serve.__name__], stdin=PIPE, stdout=PIPE, env=environment, text=True
    )
    _running.append(process)
    assert process.stdin and process.stdout
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(settings) + "\n")
        process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise OSError(f"its process ended with exit code {process.wait()}")
    return int(json.loads(answer)["port"])


_running: list[subprocess.Popen[str]] = []
"""Kept, as the process ends when its stdin is collected."""
