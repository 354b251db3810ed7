"""The process that reads a stream, one for a whole job: beside rank 0, ahead of the training, for all ranks.

    python -m training.data.stream.serve         started by client.py; settings on stdin, a line of JSON

It prints {"port": N}. Each rank connects, says the secret and its number, and gets its windows of every step: a frame
each, see `frame`. The steps that wait are bounded, so the process sleeps while the training is busy. So every document
is read and encoded once for all ranks, and their number has no part in the order.

It ends when rank 0's end closes its stdin. A source that gives nothing is reported on stderr; when the training has
waited `timeout` seconds for it, every rank gets the error, after the steps that were ready.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import queue
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from training.data import token_set, tokenizer
from training.data.encode import Encoder
from training.data.readers import SourceError
from training.data.stream.documents import Documents
from training.data.stream.fetch import Fetcher
from training.data.stream.listing import StreamListing
from training.data.stream.packed import Encoders, Packed, Position
from training.data.stream.source import open_source
from training.data.tokenizer import EngineError, Gigatoken, Tiktoken

SECRET = 32  # characters
GREETING = SECRET + 6  # bytes that a rank begins with: the secret, its number in six digits
LENGTH = struct.Struct(">I")
BUFFER = 1 << 18  # bytes of a connection that wait in the kernel: the rest waits here, where it is counted
_AHEAD_BYTES, _AHEAD_STEPS = 32 << 20, 256  # at most so much is ready for all ranks together, but two steps in any case
_LIFE = 1.0  # seconds after which a rank that waits gets a sign of life
_WATCH = 0.5  # seconds between two looks at the source
_WARN_AFTER = 10.0  # seconds without an answer; then after twice as many, and so on
_NICENESS = 5
_THREADS = 8


class Outlet:
    """A rank's end of the stream: what is ready for it, and, once it is connected, the thread that sends it."""

    def __init__(self, ahead: int) -> None:
        self.ready = queue.Queue[bytes](ahead)

    def serve(self, connection: socket.socket) -> None:
        """Send all that becomes ready, and signs of life in between, until the rank has gone."""
        with connection, contextlib.suppress(OSError):
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
            while True:
                try:
                    connection.sendall(self.ready.get(timeout=_LIFE))
                except queue.Empty:
                    connection.sendall(frame({"alive": True}))


class Feed:
    """Makes the steps and hands each rank its windows."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.timeout = float(settings["timeout"])
        self.shares: list[tuple[int, int]] = [tuple(share) for share in settings["shares"]]
        step_bytes = 4 * settings["windows"] * settings["block"]
        ahead = max(2, min(_AHEAD_STEPS, _AHEAD_BYTES // step_bytes))
        self.outlets = [Outlet(ahead) for _ in self.shares]
        self.fetcher: Fetcher | None = None
        self._failing = threading.Lock()

    def make(self) -> None:
        """Make steps until the source fails."""
        try:
            packed = self._open()
            position = Position.of(self.settings["position"]) if self.settings["position"] else Position()
            for step in packed.steps(self.settings["windows"], self.settings["block"], position):
                after = step.after.to_json()
                for outlet, (first, last) in zip(self.outlets, self.shares, strict=True):
                    outlet.ready.put(frame({"position": after}, step.windows[first:last].tobytes()))
        except SourceError as error:
            self.fail(str(error))
        except (OSError, ValueError) as error:
            self.fail(f"{self.settings['source']}: {error}")
        except Exception as error:  # noqa: BLE001 (the ranks must get any error; the thread has no caller)
            traceback.print_exc()
            self.fail(f"the reader of {self.settings['source']}: {type(error).__name__}: {error}")

    def fail(self, reason: str) -> NoReturn:
        """Tell every rank, after what is ready for it, and wait for the end of this process."""
        with self._failing:  # the first reason only
            for outlet in self.outlets:
                outlet.ready.put(frame({"error": reason}))
            while True:
                time.sleep(3600)

    def watch(self) -> NoReturn:
        """Report a source that does not answer; after `timeout` seconds in which nothing is ready, fail."""
        source, late, warn_at = self.settings["source"], None, 0.0
        while True:
            time.sleep(_WATCH)
            waiting = self.fetcher.oldest() if self.fetcher else None
            if late is not None and late is not waiting:
                say(f"{source}: goes on after {late.seconds:.0f} s")
                late = None
            if waiting is None:
                continue
            if waiting.seconds >= self.timeout and all(outlet.ready.empty() for outlet in self.outlets):
                self.fail(f"{source}: nothing for {waiting.seconds:.0f} s: {waiting}")
            if waiting.seconds >= (warn_at if late else min(_WARN_AFTER, self.timeout / 4)):
                late, warn_at = waiting, 2 * waiting.seconds
                limit = f"when the training has waited {self.timeout:.0f} s for it, the job fails"
                say(f"warning: data.source = {source}: nothing for {waiting.seconds:.0f} s: {waiting}; {limit}")

    def accept(self, server: socket.socket) -> NoReturn:
        """Let the ranks in; anybody who does not know the secret is turned away."""
        while True:
            connection, _ = server.accept()
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(10)
            greeting = received(connection, GREETING)
            rank = int(greeting[SECRET:])
            if hmac.compare_digest(greeting[:SECRET], self.settings["secret"].encode()) and rank < len(self.outlets):
                self.outlets[rank].serve(connection)
        except (OSError, ValueError):
            pass  # not one of ours, or a rank that ended meanwhile: its launcher knows
        connection.close()

    def _open(self) -> Packed:
        data = token_set.open(self.settings["data"])
        listing = StreamListing.of(data.manifest, self.settings["data"])
        self.fetcher = Fetcher(open_source(listing.source))
        seed, shuffle = self.settings["seed"], self.settings["shuffle"]
        documents = Documents(self.fetcher, listing.files, listing.reading, seed, shuffle, listing.held_out)
        return Packed(documents, encoders(data, seed), say)


def encoders(data: token_set.TokenSet, seed: int) -> Encoders:
    """The engines for a token set's vocabulary: gigatoken if it can be used, compared with tiktoken on a sample."""
    threads = max(1, min(_THREADS, len(os.sched_getaffinity(0)) // 2))
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))  # read by gigatoken
    known = tokenizer.vocabulary_of(data.encoding, data.path)
    slow, dtype = Tiktoken(known.encoding()), token_set.little_endian(data.manifest["dtype"])
    exact = Encoder(slow, None, dtype, seed)
    try:
        fast = Gigatoken(known, slow.encoding, Path(data.path) / data.encoding["ranks"], threads)
    except EngineError as error:
        say(f"encoding with {slow.name}, which is slower than gigatoken: {error}")
        return Encoders(exact, exact, threads, known.separator)
    return Encoders(Encoder(fast, slow, dtype, seed), exact, threads, known.separator)


def frame(head: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Length of the head, the head in JSON with the body's length, the body: tokens of windows."""
    text = json.dumps({**head, "bytes": len(body)}).encode()
    return LENGTH.pack(len(text)) + text + body


def received(connection: socket.socket, count: int) -> bytes:
    """Exactly `count` bytes; ConnectionError if the other side ends before."""
    data = bytearray()
    while len(data) < count:
        part = connection.recv(min(count - len(data), 1 << 20))
        if not part:
            raise ConnectionError("closed")
        data += part
    return bytes(data)


def say(line: str) -> None:
    """Print a line on stderr, which is rank 0's."""
    print(line, file=sys.stderr, flush=True)


def _end_with_rank_0() -> NoReturn:
    sys.stdin.read()
    os._exit(0)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Take the settings from stdin, print the port, and serve the ranks; ends the process with rank 0."""
    with contextlib.suppress(OSError):  # some systems do not allow it
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):  # a stop of the job: the ranks may finish a step
        signal.signal(number, signal.SIG_IGN)
    settings = json.loads(sys.stdin.readline())
    feed = Feed(settings)
    server = socket.create_server(("127.0.0.1" if settings["alone"] else "", 0), backlog=len(feed.outlets) + 16)
    print(json.dumps({"port": server.getsockname()[1]}), flush=True)
    for work in (_end_with_rank_0, feed.make, feed.watch):
        threading.Thread(target=work, daemon=True).start()
    feed.accept(server)


if __name__ == "__main__":
    main()
