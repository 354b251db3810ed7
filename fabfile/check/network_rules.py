"""Judge the probes' events: does mpirun work, and which link or node is slow? Pure functions: no connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fabfile.check.launch import ENOUGH, GLOO_S, ProbeRun
from fabfile.check.node_rules import AGAIN
from fabfile.check.verdict import Fact, Problem, Verdict, judge, some
from infra.inventory import SshCluster

SLOW = 0.4
"""A link is slow below this fraction of the best link's bandwidth."""
BAD = 0.1
"""Below this fraction the check fails: every collective runs at the speed of the slowest link."""

Links = Sequence[Sequence[float | None]]
"""Bytes per second from each rank (row) to each rank (column); None: not measured."""
Pair = tuple[int, int]


def blocked(check: str, cluster: SshCluster, facts: Mapping[str, Fact]) -> Verdict | None:
    """The verdict if a launch cannot work: a node lacks software or is not reached, or SSH is broken. Else None."""
    if why := lacking(check, cluster, facts):
        return why
    links = facts["ssh"]
    if links.missing or any(value["wrong"] for value in links.values.values()):
        return Verdict(check, "warn", "not tried: SSH between the nodes is broken", "fab wait")
    return None


def lacking(check: str, cluster: SshCluster, facts: Mapping[str, Fact]) -> Verdict | None:
    """The verdict if a node lacks software or is not reached; else None."""
    launch = facts["launch"]
    order = [node.name for node in cluster.nodes if node.name in launch.values]
    missing = {name: launch.values[name]["missing"] for name in order if launch.values[name]["missing"]}
    if missing:
        problems = [Problem("fail", f"{name} has no {', no '.join(what)}", AGAIN) for name, what in missing.items()]
        return judge(check, problems, "")
    unreached = [node.name for node in cluster.nodes if node.name in facts["reach"].missing | launch.missing]
    if unreached:
        return Verdict(check, "warn", f"not tried without {some(unreached, between=', ')}", "fab status")
    return None


def mpirun(cluster: SshCluster, run: ProbeRun) -> Verdict:
    """Whether every node printed its name."""
    names = [node.name for node in cluster.nodes]
    answered = {names[event["rank"]] for event in run.of("hello")}
    silent = [name for name in names if name not in answered]
    again = f"fab ssh {silent[0] if silent else cluster.head.name}"
    problems = []
    if len(silent) == len(names) and run.uncleaned:
        # mpirun starts no rank before it has reached all nodes.
        problems.append(Problem("fail", f"mpirun: {run.failed or 'nothing started'}", f"fab ssh {min(run.uncleaned)}"))
    elif silent:
        why = f" ({run.failed})" if run.failed else ""
        problems.append(Problem("fail", f"{some(silent, between=', ')} did not answer to mpirun{why}", again))
    elif run.failed:
        problems.append(Problem("fail", f"mpirun: {run.failed}", again))
    problems += cleanup_warnings(run)
    return judge("mpirun", problems, f"{len(names)} of {len(names)} nodes answer, started over SSH from {names[0]}")


def network(cluster: SshCluster, run: ProbeRun) -> Verdict:
    """The verdict on the links and the all-reduce."""
    names = [node.name for node in cluster.nodes]
    results = run.of("result")
    if not results:
        return judge("all-reduce", [broken_off(cluster, names, run), *cleanup_warnings(run)], "")
    result = results[-1]
    problems = [*slow_links(names, result["links"]), *cleanup_warnings(run)]
    if result["wrong"]:
        text = f"the sum over all nodes is wrong in {result['wrong']} places"
        mend = "fab run 'sudo dmesg | tail' (memory and network errors), then fab check"
        problems.insert(0, Problem("fail", text, mend))
    if len(names) == 1:
        return judge("all-reduce", problems, "one node: there are no links to measure; torch and gloo work")
    reduced = f"all-reduce of {result['bytes'] / 2**20:.0f} MiB {rate(result['algbw'])} (bus {rate(result['busbw'])})"
    found, todo = measured(result["links"]), len(names) * (len(names) - 1)
    part = f"{len(found)} links" if len(found) == todo else f"{len(found)} of {todo} links measured in their time,"
    links = f"{part} {f'{rate(min(found.values()))} to {rate(max(found.values()))}' if found else 'none measured'}"
    if problems:
        problems[0] = replace(problems[0], text=f"{problems[0].text}; {reduced}")
    return judge("all-reduce", problems, f"{links}; {reduced}, values right")


def slow_links(names: Sequence[str], links: Sequence[Sequence[float | None]]) -> list[Problem]:
    """At most one problem: the culprits, the bandwidth of the slowest link, and that of the best one."""
    found, weak = measured(links), slow(links)
    if not weak:
        return []
    best, worst = max(found.values()), min(weak.values())
    culprits = blame(links, names)
    look = f"fab ssh {culprits[0].split()[0]}, then: ip -s link; tc qdisc; ethtool"
    text = f"slow: {some(culprits, between=', ')}: {rate(worst)}, the best link {rate(best)}"
    return [Problem("fail" if worst < BAD * best else "warn", text, look)]


def broken_off(cluster: SshCluster, names: Sequence[str], run: ProbeRun) -> Problem:
    """Why there is no result: a silent rank, else the link in use at the time."""
    phases = {int(event["rank"]): event["phase"] for event in run.events if "phase" in event}
    if run.silent:
        quiet = some((names[rank] for rank in run.silent), between=", ")
        text = f"{quiet} stopped answering during: {phases.get(0) or 'the start'} (hung, or cut off)"
        return Problem("fail", text, f"fab ssh {names[run.silent[0]]}")
    errors = run.of("error")
    if not phases and run.uncleaned:
        cut = sorted(run.uncleaned)
        return Problem("fail", f"{some(cut, between=', ')} stopped answering before the start", f"fab ssh {cut[0]}")
    if not errors:
        return Problem("fail", run.failed or "no result", f"fab ssh {names[0]}")
    # The error of a rank that only waited for its turn does not show the cause.
    event = next((event for event in errors if "waiting" not in event["phase"]), errors[0])
    error = event["error"]
    for node in sorted(cluster.nodes, key=lambda node: -len(node.private_ip)):
        error = error.replace(node.private_ip, node.name)
    text = f"{names[event['rank']]} in {event['phase']}: {error}"
    return Problem("fail", text[:300], f"open all TCP ports between the nodes (gloo waits {GLOO_S} s), then fab check")


def cleanup_warnings(run: ProbeRun) -> list[Problem]:
    """A warning for each node that could not be cleaned up."""
    text = "{} could not be cleaned up ({}): its systemd ends the rest by itself"
    return [Problem("warn", text.format(*item), f"fab ssh {item[0]}") for item in sorted(run.uncleaned.items())]


def measured(links: Links) -> dict[Pair, float]:
    """Bytes per second by (sender, receiver), for the links that were measured."""
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
    return {pair: found[pair] for pair in sorted(found, key=found.__getitem__) if found[pair] < limit}


def blame(links: Links, names: Sequence[str]) -> list[str]:
    """The causes of the slow links, slowest first: a node if it explains several links, else the link.
    A node that all slow links share is to blame. Otherwise blame the node that is slow to, or from, most peers, and
    name the links that it does not explain beside it."""
    rest = list(slow(links))
    shared = set.intersection(*map(set, rest)) if rest else set()
    if len(rest) > 1 and len(shared) == 1:  # two shared: it is one link in both directions
        return [named(shared.pop(), rest, names)]
    texts = []
    while rest:
        node = most_to_blame(rest, measured(links))
        part = rest[:1] if node is None else [pair for pair in rest if node in pair]
        texts.append(" -> ".join(names[end] for end in part[0]) if node is None else named(node, part, names))
        rest = [pair for pair in rest if pair not in part]
    return texts


def most_to_blame(pairs: Sequence[Pair], all_pairs: Iterable[Pair]) -> int | None:
    """The rank in most of `pairs` for which they are most of the measured links, `all_pairs`, that it sends on, or
    receives on; else None."""
    ends, all_ends = ([Counter(side) for side in zip(*either, strict=True)] for either in (pairs, all_pairs))
    for node, _ in Counter(node for pair in pairs for node in pair).most_common():
        if any(slow[node] > 1 and 2 * slow[node] > every[node] for slow, every in zip(ends, all_ends, strict=True)):
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
