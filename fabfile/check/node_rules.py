"""Judge the nodes' facts: each node alone, against the others, and its way to them. Pure: no connection, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from fabfile.check.verdict import Problem, Trouble, some
from infra.inventory import SshCluster

DISK_WARN_GB, DISK_FAIL_GB = 5.0, 1.0
"""A checkpoint of GPT-2 124M with its optimizer is 1.5 GB, and two are kept."""
INODES_WARN, INODES_FAIL = 0.05, 0.01
MEMORY_WARN_GB, MEMORY_FAIL_GB = 0.5, 0.25
"""A rank that has only imported torch holds 0.2 GiB."""

AGAIN = "fab run 'sudo systemctl restart trainyard-bootstrap', then fab wait"
ALIKE = "fab destroy, then fab up: all nodes from one image"
ONE_TYPE = "fab destroy, then fab up with one machine type"
SKEW_WARN_S, SKEW_FAIL_S = 0.5, 5.0

JOIN = "fab wait"
CLOCKS = "fab run 'sudo timedatectl set-ntp true'"
PORTS = "open all TCP ports between the nodes (security group, ufw, nft), then fab check"


def clock(_cluster: SshCluster, values: Mapping[str, Any]) -> Finding:
    """Compare each node's clock with the median, and the median with the operator's, minus the measurement's error."""
    if not values:
        return
    middle = median(offset for offset, _ in values.values())
    for name, (offset, error) in values.items():
        yield from skewed(f"{name} is", offset - middle, error)
    yield from skewed("the nodes are", middle, min(error for _, error in values.values()), " against this machine")


Finding = Iterable[Problem]


def worse(bad: bool) -> Trouble:
    return "fail" if bad else "warn"


def versions(_cluster: SshCluster, values: Mapping[str, Any]) -> Finding:
    for name, record in values.items():
        content = record.get("content", {})
        if record["state"] == "failed":
            yield Problem(
                "fail", f"{name}: bootstrap failed in step {content.get('step')}: {content.get('reason')}", AGAIN
            )
        elif record["state"] == "broken":
            yield Problem("fail", f"{name}: {record['reason']}", AGAIN)
        elif record["state"] == "none":
            yield Problem("warn", f"{name} has no ready record, so only its kernel and system are compared", AGAIN)
    for key, by_value in differences({name: flat(record) for name, record in values.items()}).items():
        yield Problem("fail", differing(key, by_value), ALIKE)


def flat(record: Mapping[str, Any]) -> dict[str, str]:
    """All values of a record that must be the same on all nodes; the kernel is the running one."""
    content = record.get("content", {})
    found = {key: str(content[key]) for key in ("profile", "collectives", "image") if key in content}
    return (
        found | {k: str(v) for k, v in content.get("versions", {}).items()} | {k: record[k] for k in ("kernel", "os")}
    )


def differences(by_node: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, list[str]]]:
    """key -> value -> nodes, for the keys whose values differ; a node without the key has the value `none`."""
    found = {}
    # A node without a record is reported once for that, not for every key that it lacks.
    told = {name: values for name, values in by_node.items() if "image" in values} or dict(by_node)
    for key in sorted({key for values in by_node.values() for key in values}):
        by_value: dict[str, list[str]] = {}
        for name, values in (by_node if key in ("kernel", "os") else told).items():
            by_value.setdefault(values.get(key, "none"), []).append(name)
        if len(by_value) > 1:
            found[key] = by_value
    return found


def differing(key: str, by_value: Mapping[str, list[str]]) -> str:
    """`node3 has torch 2.8, the others 2.13`; without a majority, all of them."""
    usual, nodes = max(by_value.items(), key=lambda item: len(item[1]))
    rest = {value: names for value, names in by_value.items() if value != usual}
    if all(len(names) < len(nodes) for names in rest.values()):
        odd = "; ".join(f"{some(names, between=', ')} has {key} {value}" for value, names in rest.items())
        return f"{odd}, the others {usual}"
    return f"{key} differs: " + ", ".join(f"{some(names, between=', ')} {value}" for value, names in by_value.items())


def disk(cluster: SshCluster, values: Mapping[str, Any]) -> Finding:
    for name, paths in values.items():
        look = f"fab ssh {name}, then: sudo du -xh --max-depth=2 / | sort -h | tail"
        for path, value in paths.items():
            if "error" in value:
                yield Problem(
                    "fail", f"{name}: shared_dir {value['error']}", f"fab ssh {name}, then: sudo mount {path}"
                )
                continue
            if not value["writable"]:
                yield Problem(
                    "fail", f"{name}: {path} is not writable", f"fab run 'sudo chown {cluster.ssh_user} {path}'"
                )
            free, inodes = value["free_gb"], value["inodes_free"]
            if free < DISK_WARN_GB:
                yield Problem(worse(free < DISK_FAIL_GB), f"{name}: {free:.1f} GiB free in {path}", look)
            if inodes < INODES_WARN:
                yield Problem(worse(inodes < INODES_FAIL), f"{name}: {inodes:.0%} of the inodes free in {path}", look)


def memory(cluster: SshCluster, values: Mapping[str, Any]) -> Finding:
    for name, value in values.items():
        promised = cluster.node(name).memory_gb
        look = f"fab ssh {name}, then: ps aux --sort=-rss | head"
        if value["available_gb"] < MEMORY_WARN_GB:
            bad = value["available_gb"] < MEMORY_FAIL_GB
            yield Problem(worse(bad), f"{name}: {value['available_gb']:.2f} GiB of memory available", look)
        # Firmware and kernel take part of the memory that the vendor states.
        if value["total_gb"] < 0.85 * promised:
            text = f"{name} has {value['total_gb']:.1f} GiB of memory, the inventory says {promised:.1f}"
            yield Problem("warn", text, "fab refresh (or put it right in the inventory)")


def tcmalloc(_cluster: SshCluster, values: Mapping[str, Any]) -> Finding:
    for name, value in values.items():
        if not value["loaded"]:
            yield Problem("fail", f"{name}: {value['reason']}", AGAIN)


def bf16(cluster: SshCluster, values: Mapping[str, Any]) -> Finding:
    if cluster.nodes[0].gpus:
        return  # the GPU computes
    kinds = {name: kind(value) for name, value in values.items()}
    without = [name for name, value in values.items() if not value["bf16"]]
    if 0 < len(without) < len(values):
        yield Problem("fail", differing("bf16 in", grouped(kinds)), ONE_TYPE)
    elif len(set(kinds.values())) > 1:
        yield Problem("warn", differing("bf16 in", grouped(kinds)), ONE_TYPE)
    elif without:
        text = "bf16 is emulated (slower than fp32): precision auto will choose fp32"
        yield Problem("warn", text, "nothing to run; a machine type with AMX computes in bf16 (AWS m7i, Azure v6)")
    models = {name: value["model"] for name, value in values.items()}
    if len(set(models.values())) > 1:
        yield Problem("warn", differing("processor", grouped(models)), ONE_TYPE)


def kind(cpu: Mapping[str, Any]) -> str:
    flags = [name for name in ("amx_bf16", "avx512_bf16") if cpu[name]]
    return "+".join(flags) or ("hardware" if cpu["bf16"] else "emulation")


def grouped(by_node: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in by_node.items():
        found.setdefault(value, []).append(name)
    return found


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
    # A node that could not open a port is the cause: do not also report that the others fail to reach it.
    closed = {name for name, value in values.items() if value["error"]}
    yield from pairs(values, closed, PORTS)


def ssh(_cluster: SshCluster, values: Mapping[str, Any]) -> Finding:
    yield from pairs(values, set(), JOIN)


def pairs(values: Mapping[str, Any], but: set[str], mend: str) -> Finding:
    """`node1 -> node3: why`. A node that all others fail to reach for the same reason is named once."""
    wrong = {(a, b): why for a, value in values.items() for b, why in value["wrong"].items() if b not in but}
    for target, count in Counter(b for _, b in wrong).items():
        reasons = {why for (_, b), why in wrong.items() if b == target}
        if count > 1 and count >= len(values) - (target in values) and len(reasons) == 1:
            yield Problem("fail", f"every other node -> {target}: {reasons.pop()}", mend)
            wrong = {pair: why for pair, why in wrong.items() if pair[1] != target}
    for (a, b), why in wrong.items():
        yield Problem("fail", f"{a} -> {b}: {why}", mend)
