"""How fast each node computed: its tokens of a step divided by its ranks' computing time, without waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fabfile.report.run import Run
from node.run_data import number

Series = list[tuple[float, float]]
"""(step, tokens per second)"""


def by_node(run: Run) -> dict[str, Series]:
    """Each node's speed over the steps; empty if the ranks' nodes or the batch size are not known."""
    block = number(run.config.get("model.block_size"))
    if not run.batch or not block:
        return {}
    windows = int(run.batch // block)
    found: dict[str, Series] = {}
    for point in run.points:
        placement = _placement(run, point.time, len(point.rank_seconds))
        seconds: dict[str, list[float | None]] = {}
        tokens: dict[str, float] = {}
        for rank, node in enumerate(placement):
            count = windows * (rank + 1) // len(placement) - windows * rank // len(placement)  # the trainer's own split
            tokens[node] = tokens.get(node, 0.0) + count * block
            seconds.setdefault(node, []).append(point.rank_seconds[rank])
        for node, of_ranks in seconds.items():
            known = [value for value in of_ranks if value]
            if known:
                found.setdefault(node, []).append((point.step, tokens[node] / max(known)))
    return found


def _placement(run: Run, when: float | None, ranks: int) -> list[str]:
    """The node of each rank at that time; empty if not known."""
    before = [attempt for attempt in run.attempts if when is not None and attempt.time <= when]
    placement = spread(before[-1].nodes if before else run.nodes, run.slots)
    return placement if len(placement) == ranks else []


def spread(nodes: Sequence[str], slots: Mapping[str, int]) -> list[str]:
    """Each node's name, repeated for each of its ranks."""
    return [node for node in nodes for _ in range(slots.get(node, 1))]


def typical(series: Series) -> float:
    """The median speed, in tokens per second: one slow step does not change it."""
    values = sorted(value for _, value in series)
    return values[len(values) // 2]
