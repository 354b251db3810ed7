"""The rules that judge the nodes' facts: each node by itself, against the others, and its connections to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from fabfile.check.verdict import UNREACHED, Fact, Problem, Verdict, judge, some
from fabfile.remote import ended
from infra.inventory import SshCluster

DISK_GB = (5.0, 1.0)
"""(warn, fail) below so much; a checkpoint of GPT-2 124M with its optimizer is 1.5 GB, and two are kept."""
INODES = (0.05, 0.01)
MEMORY_GB = (0.5, 0.25)
"""A rank that has only imported torch holds 0.2 GiB."""
SKEW_S = (0.5, 5.0)

AGAIN = "fab run 'sudo systemctl restart trainyard-bootstrap', then fab wait"
ALIKE = "fab destroy, then fab up: all nodes from one image"
ONE_TYPE = "fab destroy, then fab up with one machine type"
JOIN = "fab wait"
CLOCKS = "fab run 'sudo timedatectl set-ntp true'"
PORTS = "open all TCP ports between the nodes (security group, ufw, nft), then fab check"

Values = Mapping[str, Any]
"""The values of one fact, by node."""
Problems = Iterable[Problem]


@dataclass(frozen=True)
class NodeRule:
    """How one fact is judged."""

    check: str
    good: Callable[[Values, str], str]
    """(values, a phrase like `all 3 nodes`) -> the line's text if nothing is wrong."""
    find: Callable[[SshCluster, Values], Problems] = lambda _cluster, _values: ()


def verdict(cluster: SshCluster, fact: Fact) -> Verdict:
    """The line for one fact; a node without the fact is a problem too, unless `reach` has named it."""
    rule, nodes = RULES[fact.name], [node.name for node in cluster.nodes]
    if not fact.values and fact.name != "reach":
        return Verdict(rule.check, "warn", f"not tried: {next(iter(fact.missing.values()), 'no node')}", "fab status")
    problems = []
    for name in nodes:
        why = fact.missing.get(name, UNREACHED)
        if name in fact.missing and (fact.name == "reach" or why != UNREACHED):
            mend = "fab status" if fact.name == "reach" else f"fab ssh {name}"
            mend = ended.MEND if why.endswith(ended.WHY) else mend
            problems.append(Problem("fail", why if name in why else f"{name}: {why}", mend))
    values = {name: fact.values[name] for name in nodes if name in fact.values}
    problems += rule.find(cluster, values)
    where = f"all {len(nodes)} nodes" if len(nodes) > 1 else "the node"
    if len(values) < len(nodes):
        where = f"{len(values)} of {len(nodes)} nodes (the others are not reached)"
    return judge(rule.check, problems, "" if problems else rule.good(values, where))


def below(value: float, limits: tuple[float, float], text: str, mend: str) -> Problems:
    """A problem if the value is below the first limit, a failure if it is below the second."""
    if value < limits[0]:
        yield Problem("fail" if value < limits[1] else "warn", text, mend)


def differing(key: str, by_node: Mapping[str, str]) -> str:
    """`node3 has torch 2.8, the others 2.13`; without a majority, all of them; empty if all are equal."""
    by_value: dict[str, list[str]] = {}
    for name, value in by_node.items():
        by_value.setdefault(value, []).append(name)
    usual, most = max(by_value.items(), key=lambda item: len(item[1]))
    rest = {value: names for value, names in by_value.items() if value != usual}
    if not rest:
        return ""
    if all(len(names) < len(most) for names in rest.values()):
        odd = "; ".join(f"{some(names, between=', ')} has {key} {value}" for value, names in rest.items())
        return f"{odd}, the others {usual}"
    return f"{key} differs: " + ", ".join(f"{some(names, between=', ')} {value}" for value, names in by_value.items())


def clock(_cluster: SshCluster, values: Values) -> Problems:
    """Compare each node's clock with the median, and the median with the operator's, minus the measurement's error."""
    middle = median(offset for offset, _ in values.values())
    for name, (offset, error) in values.items():
        yield from skewed(f"{name} is", offset - middle, error)
    yield from skewed("the nodes are", middle, min(error for _, error in values.values()), " against this machine")


def skewed(who: str, offset: float, error: float, against: str = "") -> Problems:
    """A problem if a clock is off by more than SKEW_S, or if that cannot be known."""
    certain, (warn, fail) = abs(offset) - error, SKEW_S
    if certain > warn:
        text = f"{who} {abs(offset):.1f} s {'ahead' if offset > 0 else 'behind'}{against} (+-{error:.2f} s)"
        yield Problem("fail" if certain > fail else "warn", text, CLOCKS)
    elif error > warn:
        text = f"{who} too slow to answer to tell{against} (+-{error:.1f} s)"
        yield Problem("warn", text, "fab check (again, when idle)")


def versions(_cluster: SshCluster, values: Values) -> Problems:
    """Every node has its bootstrap's record, and the same software."""
    for name, record in values.items():
        content = record.get("content", {})
        if record["state"] == "failed":
            text = f"{name}: bootstrap failed in step {content.get('step')}: {content.get('reason')}"
            yield Problem("fail", text, AGAIN)
        elif record["state"] == "broken":
            yield Problem("fail", f"{name}: {record['reason']}", AGAIN)
        elif record["state"] == "none":
            yield Problem("warn", f"{name} has no ready record, so only its kernel and system are compared", AGAIN)
    software = {name: flat(record) for name, record in values.items()}
    # A node without a record is reported once for that, not for every key that it lacks.
    recorded = {name: found for name, found in software.items() if "image" in found} or software
    for key in sorted({key for found in software.values() for key in found}):
        compared = software if key in ("kernel", "os") else recorded
        if text := differing(key, {name: found.get(key, "none") for name, found in compared.items()}):
            yield Problem("fail", text, ALIKE)


def flat(record: Mapping[str, Any]) -> dict[str, str]:
    """All values of a record that must be the same on all nodes; the kernel is the running one."""
    content = record.get("content", {})
    found = {key: content[key] for key in ("profile", "collectives", "image") if key in content}
    found |= {**content.get("versions", {}), "kernel": record["kernel"], "os": record["os"]}
    return {key: str(value) for key, value in found.items()}


def disk(cluster: SshCluster, values: Values) -> Problems:
    """Every disk is mounted and writable, with space and inodes free."""
    for name, path, value in ((name, path, value) for name, paths in values.items() for path, value in paths.items()):
        if "error" in value:
            mend = f"fab ssh {name}, then: sudo mount {path}"
            yield Problem("fail", f"{name}: shared_dir {value['error']}", mend)
            continue
        if not value["writable"]:
            mend = f"fab run 'sudo chown {cluster.ssh_user} {path}'"
            yield Problem("fail", f"{name}: {path} is not writable", mend)
        look = f"fab ssh {name}, then: sudo du -xh --max-depth=2 / | sort -h | tail"
        free, inodes = value["free_gb"], value["inodes_free"]
        yield from below(free, DISK_GB, f"{name}: {free:.1f} GiB free in {path}", look)
        yield from below(inodes, INODES, f"{name}: {inodes:.0%} of the inodes free in {path}", look)


def memory(cluster: SshCluster, values: Values) -> Problems:
    """Every node has memory available, and about as much in total as the inventory says."""
    for name, value in values.items():
        free, total, promised = value["available_gb"], value["total_gb"], cluster.node(name).memory_gb
        look = f"fab ssh {name}, then: ps aux --sort=-rss | head"
        yield from below(free, MEMORY_GB, f"{name}: {free:.2f} GiB of memory available", look)
        # Firmware and kernel take part of the memory that the vendor states.
        if total < 0.85 * promised:
            text = f"{name} has {total:.1f} GiB of memory, the inventory says {promised:.1f}"
            yield Problem("warn", text, "fab refresh (or put it right in the inventory)")


def tcmalloc(_cluster: SshCluster, values: Values) -> Problems:
    """tcmalloc is loaded on every node."""
    yield from (Problem("fail", f"{n}: {value['reason']}", AGAIN) for n, value in values.items() if not value["loaded"])


def bf16(cluster: SshCluster, values: Values) -> Problems:
    """All nodes compute bf16 in the same way, and on the same processor; on GPUs that does not matter."""
    if cluster.nodes[0].gpus:
        return
    without = [name for name, value in values.items() if not value["bf16"]]
    if text := differing("bf16 in", {name: kind(value) for name, value in values.items()}):
        yield Problem("fail" if 0 < len(without) < len(values) else "warn", text, ONE_TYPE)
    elif without:
        text = "bf16 is emulated (slower than fp32): precision auto will choose fp32"
        yield Problem("warn", text, "nothing to run; a machine type with AMX computes in bf16 (AWS m7i, Azure v6)")
    if text := differing("processor", {name: value["model"] for name, value in values.items()}):
        yield Problem("warn", text, ONE_TYPE)


def kind(cpu: Mapping[str, Any]) -> str:
    """What computes bf16: the instruction sets, other hardware, or emulation."""
    flags = [name for name in ("amx_bf16", "avx512_bf16") if cpu[name]]
    return "+".join(flags) or ("hardware" if cpu["bf16"] else "emulation")


def names(_cluster: SshCluster, values: Values) -> Problems:
    """Every node finds every node by name, and knows its own."""
    for name, value in values.items():
        if value["hostname"].partition(".")[0] != name:
            mend = f"fab ssh {name}, then: sudo hostnamectl hostname {name}"
            yield Problem("warn", f"{name} calls itself {value['hostname']}", mend)
        for other, wrong in value["wrong"].items():
            yield Problem("fail", f"{name} looks {other} up: {wrong}", JOIN)


def ports(_cluster: SshCluster, values: Values) -> Problems:
    """Every node can open a port, and the others reach it there."""
    closed = {name: value["error"] for name, value in values.items() if value["error"]}
    yield from (Problem("fail", f"{name}: {error}", PORTS) for name, error in closed.items())
    # A node that could not open a port is the cause: do not also report that the others fail to reach it.
    yield from pairs(values, PORTS, without=closed)


def pairs(values: Values, mend: str, *, without: Iterable[str] = ()) -> Problems:
    """`node1 -> node3: why`. A node that all others fail to reach for the same reason is named once."""
    wrong = {(a, b): why for a, value in values.items() for b, why in value["wrong"].items() if b not in without}
    for target, count in Counter(b for _, b in wrong).items():
        reasons = {why for (_, b), why in wrong.items() if b == target}
        if count > 1 and count >= len(values) - (target in values) and len(reasons) == 1:
            yield Problem("fail", f"every other node -> {target}: {reasons.pop()}", mend)
            wrong = {pair: why for pair, why in wrong.items() if pair[1] != target}
    for (a, b), why in wrong.items():
        yield Problem("fail", f"{a} -> {b}: {why}", mend)


def _first(values: Values) -> Any:
    return next(iter(values.values()))


def _good_clock(values: Values, where: str) -> str:
    offset, error = (max(abs(pair[part]) for pair in values.values()) for part in (0, 1))
    return f"{where} and this machine within {offset:.2f} s (+-{error:.2f} s)"


def _good_versions(values: Values, where: str) -> str:
    have = flat(_first(values))
    listed = [f"{key} {have[key]}" for key in ("python", "torch", "profile", "kernel") if key in have]
    listed += [f"image {have['image'][:12]}"] if "image" in have else []
    return f"{', '.join(listed)} on {where}"


def _good_disk(values: Values, where: str) -> str:
    free = {path: min(paths[path]["free_gb"] for paths in values.values()) for path in _first(values)}
    return f"{some((f'{least:.0f} GiB free in {path}' for path, least in free.items()), between=', ')} on {where}"


def _good_memory(values: Values, where: str) -> str:
    return f"{min(value['available_gb'] for value in values.values()):.1f} GiB available on {where}"


def _good_ssh(values: Values, where: str) -> str:
    links = len(values) * (len(values) - 1)
    return f"{links} of {links} links between {where}, host keys verified" if links else "one node: no links to test"


def _good_ports(values: Values, where: str) -> str:
    return f"{where} can be reached at a free port from every other" if len(values) > 1 else "a free port can be opened"


RULES = {
    "reach": NodeRule("reach", lambda _, where: f"SSH from here to {where}, host keys verified"),
    "clock": NodeRule("clock", _good_clock, clock),
    "record": NodeRule("versions", _good_versions, versions),
    "disk": NodeRule("disk", _good_disk, disk),
    "memory": NodeRule("memory", _good_memory, memory),
    "tcmalloc": NodeRule(
        "tcmalloc", lambda v, w: f"{_first(v)['library'].rpartition('/')[2]} is loaded on {w}", tcmalloc
    ),
    "cpu": NodeRule("bf16", lambda values, where: f"computed by {kind(_first(values))} on {where}", bf16),
    "names": NodeRule("names", lambda _, where: f"names and addresses of all nodes agree on {where}", names),
    "ports": NodeRule("ports", _good_ports, ports),
    "ssh": NodeRule("ssh", _good_ssh, lambda _, values: pairs(values, JOIN)),
}
"""The facts that get a line of their own; the fact `launch` is judged with mpirun."""
