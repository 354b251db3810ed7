"""The pre-flight of a cluster: collect and judge the facts about its nodes, then run mpirun and measure the network."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fabfile.check import launch, network_rules, node_rules
from fabfile.check.observations import UNREACHED, Fact, Gathering
from fabfile.check.verdict import Problem, Verdict, judge, some
from fabfile.remote import ended
from fabfile.remote.fleet import Fleet
from infra.inventory import SshCluster

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Judge:
    """How one fact is judged."""

    check: str
    good: Callable[[Values, str], str]
    """(values by node, a phrase like `all 3 nodes`) -> the line's text if nothing is wrong."""
    find: Callable[[SshCluster, Values], Iterable[Problem]] = lambda _cluster, _values: ()


def verdict(cluster: SshCluster, fact: Fact) -> Verdict:
    """The line for one fact; a node without the fact is a problem too, unless `reach` has named it."""
    by = JUDGES[fact.name]
    if not fact.values and fact.name != "reach":
        return Verdict(by.check, "warn", f"not tried: {next(iter(fact.missing.values()), 'no node')}", "fab status")
    problems = []
    for name, why in _in_order(cluster, fact.missing).items():
        if fact.name == "reach" or why != UNREACHED:
            mend = "fab status" if fact.name == "reach" else f"fab ssh {name}"
            mend = ended.MEND if why.endswith(ended.WHY) else mend
            problems.append(Problem("fail", why if name in why else f"{name}: {why}", mend))
    values = _in_order(cluster, fact.values)
    problems += by.find(cluster, values)
    if problems:
        return judge(by.check, problems, "")
    return Verdict(by.check, "pass", by.good(values, _where(len(values), len(cluster.nodes))))


def _in_order(cluster: SshCluster, of_nodes: Mapping[str, Any]) -> dict[str, Any]:
    return {node.name: of_nodes[node.name] for node in cluster.nodes if node.name in of_nodes}


def _where(told: int, nodes: int) -> str:
    if nodes == 1:
        return "the node"
    return f"all {nodes} nodes" if told == nodes else f"{told} of {nodes} nodes (the others are not reached)"


def _good_clock(values: Values, where: str) -> str:
    offsets = [offset for offset, _ in values.values()]
    error = max(error for _, error in values.values())
    return f"{where} and this machine within {max(map(abs, offsets)):.2f} s (+-{error:.2f} s)"


def _good_versions(values: Values, where: str) -> str:
    have = node_rules.flat(next(iter(values.values())))
    listed = [f"{key} {have[key]}" for key in ("python", "torch", "profile", "kernel") if key in have]
    image = f", image {have['image'][:12]}" if "image" in have else ""
    return f"{', '.join(listed)}{image} on {where}"


def _good_disk(values: Values, where: str) -> str:
    free = {path: min(paths[path]["free_gb"] for paths in values.values()) for path in next(iter(values.values()))}
    return f"{some((f'{least:.0f} GiB free in {path}' for path, least in free.items()), between=', ')} on {where}"


def _good_memory(values: Values, where: str) -> str:
    return f"{min(value['available_gb'] for value in values.values()):.1f} GiB available on {where}"


def _good_tcmalloc(values: Values, where: str) -> str:
    return f"{next(iter(values.values()))['library'].rpartition('/')[2]} is loaded on {where}"


def _good_bf16(values: Values, where: str) -> str:
    return f"computed by {node_rules.kind(next(iter(values.values())))} on {where}"


def _good_names(_values: Values, where: str) -> str:
    return f"names and addresses of all nodes agree on {where}"


def _good_ssh(values: Values, where: str) -> str:
    links = len(values) * (len(values) - 1)
    return f"{links} of {links} links between {where}, host keys verified" if links else "one node: no links to test"


def _good_ports(values: Values, where: str) -> str:
    return f"{where} can be reached at a free port from every other" if len(values) > 1 else "a free port can be opened"


JUDGES = {
    "reach": Judge("reach", lambda _values, where: f"SSH from here to {where}, host keys verified"),
    "clock": Judge("clock", _good_clock, node_rules.clock),
    "record": Judge("versions", _good_versions, node_rules.versions),
    "disk": Judge("disk", _good_disk, node_rules.disk),
    "memory": Judge("memory", _good_memory, node_rules.memory),
    "tcmalloc": Judge("tcmalloc", _good_tcmalloc, node_rules.tcmalloc),
    "cpu": Judge("bf16", _good_bf16, node_rules.bf16),
    "names": Judge("names", _good_names, node_rules.names),
    "ports": Judge("ports", _good_ports, node_rules.ports),
    "ssh": Judge("ssh", _good_ssh, node_rules.ssh),
}
"""The facts that get a line of their own; the fact `launch` is judged with mpirun."""


def verdicts_of(cluster: SshCluster, fleet: Fleet) -> Generator[Verdict, None, None]:
    """Yield each check's verdict as soon as it is known."""
    gathering = Gathering(cluster, fleet)
    facts: dict[str, Fact] = {}
    for fact in gathering.facts():
        facts[fact.name] = fact
        if fact.name in JUDGES:
            yield verdict(cluster, fact)
    for name, run, judged in (
        ("mpirun", launch.hello, network_rules.mpirun),
        ("all-reduce", launch.network, network_rules.network),
    ):
        one = network_rules.blocked(name, cluster, facts) or judged(cluster, run(cluster, gathering.sessions))
        yield one
        if one.level == "fail":
            break  # the network is measured by ranks that mpirun starts
