"""One rank of the network test: every directed link's bandwidth, one at a time, then a checked all-reduce.

Started on every node like a rank of a job, in the ranks' Python environment:

    allreduce TIMEOUT BUDGET ENOUGH

TIMEOUT: seconds that gloo waits for a rank; BUDGET: seconds for all links together; ENOUGH: bytes a second from which a
link is not measured again.

Every rank prints `{"rank", "event": "alive", "phase"}` every 1.5 s, and `{"rank", "event": "error", ...}` when it
fails; rank 0's last line is `{"event": "result", ...}`. A rank that stops printing hangs or is cut off. The others wait
for it until gloo's timeout, so only its missing lines show which rank it is.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from node.job.rank_wrapper import RankPlacement
from node.probes import say

BEAT_S = 1.5
_END = "end"


class Beat:
    """Prints an `alive` line with the current phase every BEAT_S seconds, until the phase is _END."""

    def __init__(self, rank: int) -> None:
        self.rank, self.phase = rank, "import of torch"
        threading.Thread(target=self._run, daemon=True).start()

    def enter(self, phase: str) -> None:
        """Set the current phase, for the `alive` and `error` lines."""
        self.phase = phase

    def _run(self) -> None:
        while self.phase != _END:
            say(rank=self.rank, event="alive", phase=self.phase)
            time.sleep(BEAT_S)


def main(argv: list[str]) -> None:
    """Measure with the other ranks; print the result on rank 0."""
    timeout, budget, enough = map(float, argv)

    def measure(place: RankPlacement, address: str, enter: Callable[[str], None]) -> dict[str, Any]:
        from node.probes import links

        names = [node.name for node in place.nodes]
        return links.measure(names, place.rank, address, enter, timeout=timeout, budget=budget, enough=enough)

    run(measure)


def run(measure: Callable[[RankPlacement, str, Callable[[str], None]], dict[str, Any]]) -> None:
    """Be one rank of a measurement, which is called with this rank's place, the address (host:port) at which the ranks
    meet, and what is to be called with the name of each phase; print what it returns on rank 0."""
    place = RankPlacement(os.environ)
    os.environ["OMP_NUM_THREADS"] = "1"  # nothing here computes; idle threads would only disturb the timing
    beat = Beat(place.rank)
    # Imported here because it takes seconds on a busy node, and the rank must already print its `alive` lines.
    from torch import distributed

    head = os.environ["MASTER_ADDR"]
    address = f"{f'[{head}]' if ':' in head else head}:{os.environ['MASTER_PORT']}"
    try:
        result = measure(place, address, beat.enter)
        beat.enter(_END)
    except Exception as error:  # noqa: BLE001 - any error is reported, with the phase in which it happened
        say(rank=place.rank, event="error", phase=beat.phase, error=" ".join(str(error).split())[:300])
        os._exit(1)  # destroying the group would wait for the rank that hangs
    if place.rank == 0:
        say(rank=0, event="result", **result)
    distributed.destroy_process_group()
