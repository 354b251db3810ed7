"""What is wrong between the nodes: clocks, names, ports, SSH. Pure: no connection, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from fabfile.check.verdict import Problem
from infra.inventory import SshCluster

SKEW_WARN_S, SKEW_FAIL_S = 0.5, 5.0

JOIN = "fab wait"
CLOCKS = "fab run 'sudo timedatectl set-ntp true'"
PORTS = "open all TCP ports between the nodes (security group, ufw, nft), then fab check"

Finding = Iterable[Problem]


def clock(_cluster: SshCluster, values: Mapping[str, Any]) -> Finding:
    """Nodes against their median, and that against the operator; less what the measurement itself may be off."""
    if not values:
        return
    middle = median(offset for offset, _ in values.values())
    for name, (offset, error) in values.items():
        yield from skewed(f"{name} is", offset - middle, error)
    yield from skewed("the nodes are", middle, min(error for _, error in values.values()), " against this machine")


def skewed(who: str, offset: float, error: float, against: str = "") -> Finding:
    sure = abs(offset) - error
    way = "ahead" if offset > 0 else "behind"
    if sure > SKEW_WARN_S:
        yield Problem(
            "fail" if sure > SKEW_FAIL_S else "warn",
            f"{who} {abs(offset):.1f} s {way}{against} (+-{error:.2f} s)",
            CLOCKS,
        )
    elif error > SKEW_WARN_S:
        yield Problem(
            "warn", f"{who} too slow to answer to tell{against} (+-{error:.1f} s)", "fab check (again, when idle)"
        )


def names(_cluster: SshCluster, values: Mapping[str, Any]) -> Finding:
    for name, value in values.items():
        if value["hostname"].partition(".")[0] != name:
            yield Problem(
                "warn",
                f"{name} calls itself {value['hostname']}",
                f"fab ssh {name}, then: sudo hostnamectl hostname {name}",
            )
        for other, wrong in value["wrong"].items():
            yield Problem("fail", f"{name} looks {other} up: {wrong}", JOIN)


def ports(_cluster: SshCluster, values: Mapping[str, Any]) -> Finding:
    for name, value in values.items():
        if value["error"]:
            yield Problem("fail", f"{name}: {value['error']}", PORTS)
    # A node that could open no port is the cause, the others' failure to reach it is not worth a word.
    closed = {name for name, value in values.items() if value["error"]}
    yield from pairs(values, closed, PORTS)


def ssh(_cluster: SshCluster, values: Mapping[str, Any]) -> Finding:
    yield from pairs(values, set(), JOIN)


def pairs(values: Mapping[str, Any], but: set[str], mend: str) -> Finding:
    """`node1 -> node3: why`; a node that all others fail to reach for one reason is named once."""
    wrong = {(a, b): why for a, value in values.items() for b, why in value["wrong"].items() if b not in but}
    for target, count in Counter(b for _, b in wrong).items():
        reasons = {why for (_, b), why in wrong.items() if b == target}
        if count > 1 and count >= len(values) - (target in values) and len(reasons) == 1:
            yield Problem("fail", f"every other node -> {target}: {reasons.pop()}", mend)
            wrong = {pair: why for pair, why in wrong.items() if pair[1] != target}
    for (a, b), why in wrong.items():
        yield Problem("fail", f"{a} -> {b}: {why}", mend)
