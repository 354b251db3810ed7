"""Find out which rank was lost, and report it on all others in one line.

The error of a failed collective names a socket at best, and after a timeout nothing. So each rank has a thread that
answers roll calls through rank 0's store, even while its training waits for a message that will never come. The first
rank whose collective fails starts a roll call; a rank that does not answer is dead, stopped or cut off. The verdict is
put into the store, and every rank's thread ends its process when it reads it, so that no rank waits for its timeout.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import threading
import time
from collections.abc import Sequence

import torch.distributed as dist

from training.keys import JobError

POLL = 0.5
"""Seconds between two reads of the store."""
ROLL_CALL = 2.0
"""Seconds that ranks have to answer. The whole search takes at most 5."""

REFUSED = "refused: "
"""Begins a verdict on a job that is invalid, of which perhaps one rank alone knows: its node's data, say."""

_COLLECTIVE = re.compile(r"gloo|nccl|ccl|process group|connection|socket|timed out|broken pipe", re.IGNORECASE)


class Peers:
    """Watches for a lost rank: its thread answers roll calls, and ends this process on a verdict. `names` is what
    messages call each rank."""

    def __init__(self, rank: int, names: Sequence[str]) -> None:
        self.rank = rank
        self.names = names
        self.progress = "start"
        """Step and phase of this rank, its answer to a roll call."""
        self._store = _own_connection()
        self._stopped = threading.Event()
        self._ending = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="peers", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread before a regular end, so that it does not take the closed store for a failure."""
        self._stopped.set()
        self._thread.join(2 * POLL)

    def explain(self, error: BaseException) -> str:
        """One line for the exception that ended this rank, agreed with the other ranks that can be reached. JobError if
        another rank has found that the job is invalid: this one's exception follows from its end."""
        self._stopped.set()
        found: list[str] = []
        asking = threading.Thread(target=lambda: found.append(self._verdict(error)), daemon=True)
        asking.start()
        asking.join(ROLL_CALL + 1.5)
        if self.rank == 0:
            time.sleep(3 * POLL)  # the store ends with this process: let the others read it
        if found and found[0].startswith(REFUSED) and not isinstance(error, JobError):
            raise JobError(found[0].removeprefix(REFUSED))
        if found:
            return found[0].removeprefix(REFUSED)
        if is_collective(error) and self.rank:
            return f"{self.names[0]} does not answer ({plain(error)})"
        return f"{self.names[self.rank]} failed: {plain(error)}"

    def _verdict(self, error: BaseException) -> str:
        store = _own_connection()
        if isinstance(error, JobError):
            return self._publish(store, f"{REFUSED}{self.names[self.rank]}: {' '.join(str(error).split())}")
        if not is_collective(error):
            return self._publish(store, f"{self.names[self.rank]} failed: {plain(error)}")
        store.set("roll", "1")
        store.set(f"here/{self.rank}", self.progress)
        others = [rank for rank in range(len(self.names)) if rank != self.rank]
        end = time.monotonic() + ROLL_CALL
        while time.monotonic() < end:
            if store.check(["verdict"]):
                return str(store.get("verdict").decode())
            silent = [rank for rank in others if not store.check([f"here/{rank}"])]
            if not silent:
                break
            time.sleep(0.1)
        if silent:
            named = ", ".join(self.names[rank] for rank in silent)
            return self._publish(store, f"{named} {'do' if len(silent) > 1 else 'does'} not answer ({plain(error)})")
        states = ", ".join(f"{name} {store.get(f'here/{rank}').decode()}" for rank, name in enumerate(self.names))
        return self._publish(store, f"ranks lost touch, though all answer ({plain(error)}): {states}")

    def _publish(self, store: dist.Store, verdict: str) -> str:
        """Store the verdict unless there is one already; returns the one that is stored."""
        return str(store.compare_set("verdict", "", verdict).decode()) or verdict

    def _watch(self) -> None:
        answered = False
        while not self._stopped.wait(POLL):
            try:
                if self._store.check(["verdict"]):
                    self._end(self._store.get("verdict").decode())
                if not answered and self._store.check(["roll"]):
                    self._store.set(f"here/{self.rank}", self.progress)
                    answered = True
            except RuntimeError as error:
                if not self._stopped.is_set():
                    self._end(f"{self.names[0]} does not answer ({plain(error)})")

    def _end(self, verdict: str) -> None:
        """End the process from this thread, as the main thread may hang in a collective."""
        with self._ending:
            if self._stopped.is_set():
                return
            print(f"error: {verdict.removeprefix(REFUSED)}", file=sys.stderr, flush=True)
            sys.stdout.flush()
            if self.rank == 0:
                time.sleep(3 * POLL)
            os._exit(2 if verdict.startswith(REFUSED) else 1)


def is_collective(error: BaseException) -> bool:
    """Whether an exception came from communication with another rank, judged by its type and text."""
    return isinstance(error, ConnectionError | dist.DistError) or (
        isinstance(error, RuntimeError) and bool(_COLLECTIVE.search(str(error)))
    )


def plain(error: BaseException) -> str:
    """The reason of an exception in one line, without torch's file names and line numbers."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.filename or 'its run directory'}: the disk is full"  # write's error, unlike open's, has no name
    text = " ".join(str(error).split()) or type(error).__name__
    if timed_out := re.search(r"[Tt]imed out waiting (\d+) ?ms", text):
        return f"no message for {int(timed_out[1]) / 1000:g} s"
    if closed := re.search(r"Connection (closed|reset) by peer( \[[^\]]*\])?", text):
        return f"connection {closed[1]} by peer{closed[2] or ''}"
    text = re.sub(r"^\[[^\]]*\.(cc|cpp|h):\d+\]\s*", "", text)
    return text[:200]


def _own_connection() -> dist.Store:
    """A separate connection to rank 0's store, so that a call that hangs on the process group's does not block it."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.PrefixStore("peers", dist.TCPStore(host, port, is_master=False, wait_for_workers=False))
