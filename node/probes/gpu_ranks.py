"""One rank of the measurement of NCCL's all-reduce where no mpirun starts nccl-tests: in the pods of Kubernetes.

    gpu-ranks TIMEOUT BUDGET

There is a rank for each GPU. TIMEOUT: seconds that a rank waits for the others; BUDGET: seconds for all pairs of nodes
together. The first rank of each group of nodes prints the line of node/probes/nccl.py for it, with its own `rank`; that
it is alive, an error and the end are said as in node/probes/allreduce.py.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from node.job.rank_wrapper import RankPlacement
from node.probes import allreduce
from node.probes.nccl import DEBUG


def main(argv: list[str]) -> None:
    """Measure with the other ranks."""
    timeout, budget = map(float, argv)
    with tempfile.TemporaryDirectory(prefix="trainyard-check-") as folder:
        log = Path(folder) / "nccl"
        os.environ.update({**DEBUG, "NCCL_DEBUG_FILE": str(log)})

        def measure(place: RankPlacement, address: str, enter: Callable[[str], None]) -> dict[str, Any]:
            from node.probes import groups

            return groups.Groups(place, enter, log).measure(address, timeout=timeout, budget=budget)

        allreduce.run(measure)
