"""How fast each node computed: its share of the batch over the time its ranks computed, without waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fabfile.report.facts import Run
from node.run_data import number

Series = list[tuple[float, float]]
"""(step, tokens a second)"""


def by_node(run: Run) -> dict[str, Series]:
    """Node -> its speed over the steps; empty where it is not known who had which rank, or how large the batch was."""
    batch, block = number(run.config.get("train.global_batch_tokens")), number(run.config.get("model.block_size"))
    if not batch or not block:
        return {}
    windows = int(batch // block)
    found: dict[str, Series] = {}
    for point in run.points:
        placement = placed(run, point.time, len(point.rank_seconds))
        seconds: dict[str, list[float | None]] = {}
        tokens: dict[str, float] = {}
        for rank, node in enumerate(placement):
            taken = windows * (rank + 1) // len(placement) - windows * rank // len(placement)  # as training.job.share
            tokens[node] = tokens.get(node, 0.0) + taken * block
            seconds.setdefault(node, []).append(point.rank_seconds[rank])
        for node, each in seconds.items():
            known = [value for value in each if value]
            if known:
                found.setdefault(node, []).append((point.step, tokens[node] / max(known)))
    return found


def placed(run: Run, when: float | None, ranks: int) -> list[str]:
    """The node of each rank at that time; empty where that is not known."""
    before = [attempt for attempt in run.attempts if when is not None and attempt.time <= when]
    nodes = before[-1].nodes if before else run.nodes
    placement = spread(nodes, run.slots)
    return placement if len(placement) == ranks else []


def spread(nodes: Sequence[str], slots: Mapping[str, int]) -> list[str]:
    return [node for node in nodes for _ in range(slots.get(node, 1))]


def typical(series: Series) -> float:
    """The middle value: what a hiccup does not change."""
    values = sorted(value for _, value in series)
    return values[len(values) // 2]
