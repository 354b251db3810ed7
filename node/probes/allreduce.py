"""One rank of the network test: every directed link's bandwidth, one at a time, then a checked all-reduce.

Started on every node as a rank of a job is, in the Python environment of the ranks:

    allreduce TIMEOUT BUDGET ENOUGH

TIMEOUT: seconds that gloo waits for a rank; BUDGET: seconds for all links together; ENOUGH: bytes a second from which a
link is not measured again.

Every rank prints `{"rank", "event": "alive", "phase"}` every second or two, and `{"rank", "event": "error", ...}` when
it fails; rank 0 ends with `{"event": "result", ...}` as its last line. A rank that says nothing any more hangs or is
cut off: the others wait for it until gloo's time-out, so only its silence tells which one it is.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from node.job.rank_wrapper import Place

BEAT_S = 1.5
_END = "end"


def say(**what: object) -> None:
    """Print a line of JSON, in one write: the lines of many ranks go through one pipe."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Beat:
    """Says every BEAT_S that this rank is alive, and in which phase, until the phase is _END."""

    def __init__(self, rank: int) -> None:
        self.rank, self.phase = rank, "import of torch"
        threading.Thread(target=self._run, daemon=True).start()

    def enter(self, phase: str) -> None:
        """Remember what is going on, for the error that may come."""
        self.phase = phase

    def _run(self) -> None:
        while self.phase != _END:
            say(rank=self.rank, event="alive", phase=self.phase)
            time.sleep(BEAT_S)


def main(argv: list[str]) -> None:
    """Measure with the other ranks; print the result on rank 0."""
    timeout, budget, enough = map(float, argv)
    place = Place(os.environ)
    os.environ["OMP_NUM_THREADS"] = "1"  # nothing here computes; idle threads would only disturb the clock
    beat = Beat(place.rank)
    # Not at the top: the import takes seconds on a busy node, and the rank should be heard meanwhile.
    from torch import distributed

    from node.probes import links

    head = os.environ["MASTER_ADDR"]
    address = f"{f'[{head}]' if ':' in head else head}:{os.environ['MASTER_PORT']}"
    names = [node.name for node in place.nodes]
    try:
        result = links.measure(names, place.rank, address, beat.enter, timeout=timeout, budget=budget, enough=enough)
        beat.enter(_END)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told with the phase it happened in
        say(rank=place.rank, event="error", phase=beat.phase, error=" ".join(str(error).split())[:300])
        os._exit(1)  # destroying the group would wait for the rank that hangs
    if place.rank == 0:
        say(rank=0, event="result", **result)
    distributed.destroy_process_group()
