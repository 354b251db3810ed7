"""From bandwidths to a verdict: which link is slow, or which node's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fabfile.check.verdict import some

SLOW = 0.4
"""A link below this part of the best one is slow."""
BAD = 0.1
"""Below this part it fails the check: every collective then runs at that link's speed."""
ENOUGH = 0.6e9
"""Bytes per second above which no link is slow: AWS lets one TCP stream have 5 Gbit/s. Faster ones are between
machines of one host, where the processor's other work decides, not the link."""

Links = Sequence[Sequence[float | None]]
"""Bytes per second from each rank (row) to each rank (column); None: not measured."""
Pair = tuple[int, int]


def measured(links: Links) -> dict[Pair, float]:
    return {
        (sender, receiver): value
        for sender, row in enumerate(links)
        for receiver, value in enumerate(row)
        if sender != receiver and value is not None
    }


def slow(links: Links) -> dict[Pair, float]:
    """The slow links, slowest first."""
    found = measured(links)
    limit = min(SLOW * max(found.values(), default=0.0), ENOUGH)
    return dict(sorted(((pair, v) for pair, v in found.items() if v < limit), key=lambda item: item[1]))


def blame(links: Links, names: Sequence[str]) -> list[str]:
    """What to name for the slow links, the slowest first: nodes with a direction where one explains them, else links.

    A node that all slow links share is to blame. Where there is none, a node is that is slow toward most of the
    others: it alone is named for its links, and what it does not explain beside it.
    """
    left = list(slow(links))
    shared = set.intersection(*({s, r} for s, r in left)) if left else set()
    if len(left) > 1 and len(shared) == 1:  # two shared: it is one link in both directions
        return [named(shared.pop(), left, names)]
    texts = []
    while left:
        node = most_to_blame(left, measured(links))
        part = [left[0]] if node is None else [pair for pair in left if node in pair]
        texts.append(f"{names[part[0][0]]} -> {names[part[0][1]]}" if node is None else named(node, part, names))
        left = [pair for pair in left if pair not in part]
    return texts


def most_to_blame(pairs: Sequence[Pair], all_pairs: Iterable[Pair]) -> int | None:
    """The node in most of these pairs, if these are most of what it sends or most of what it receives."""
    all_listed = list(all_pairs)
    counts = Counter(node for pair in pairs for node in pair)
    for node, _ in counts.most_common():
        for side in (0, 1):
            its = sum(pair[side] == node for pair in pairs)
            if its > 1 and 2 * its > sum(pair[side] == node for pair in all_listed):
                return node
    return None


def named(node: int, pairs: Sequence[Pair], names: Sequence[str]) -> str:
    """`node2 sending (to node1, node3)`."""
    sends, receives = any(s == node for s, _ in pairs), any(r == node for _, r in pairs)
    way, toward = ("", "to and from") if sends and receives else (" sending", "to") if sends else (" receiving", "from")
    others = sorted({other for pair in pairs for other in pair} - {node})
    return f"{names[node]}{way} ({toward} {some((names[other] for other in others), between=', ')})"


def rate(bytes_per_second: float) -> str:
    """12.3 MB/s, 1.4 GB/s: three digits that mean something."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bytes_per_second >= size:
            value = bytes_per_second / size
            return f"{value:.0f} {unit}/s" if value >= 100 else f"{value:.1f} {unit}/s"
    return f"{bytes_per_second:.0f} B/s"


def spread(values: Iterable[float]) -> str:
    """`1.2 GB/s to 1.9 GB/s`."""
    listed = sorted(values)
    return f"{rate(listed[0])} to {rate(listed[-1])}" if listed else "none measured"
