"""From what came of a program on all nodes to a verdict. Pure: no connection, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fabfile.check.alone import AGAIN
from fabfile.check.launch import GLOO_S, Run
from fabfile.check.links import BAD, blame, measured, rate, slow, spread
from fabfile.check.observations import Fact
from fabfile.check.verdict import Problem, Verdict, judge, some
from infra.inventory import SshCluster


def blocked(check: str, cluster: SshCluster, facts: Mapping[str, Fact]) -> Verdict | None:
    """Why a launch need not be tried: what it stands on is broken, or a node lacks what it needs."""
    launch = facts["launch"]
    order = [node.name for node in cluster.nodes if node.name in launch.values]
    missing = {name: launch.values[name]["missing"] for name in order if launch.values[name]["missing"]}
    if missing:
        problems = [Problem("fail", f"{name} has no {', no '.join(what)}", AGAIN) for name, what in missing.items()]
        return judge(check, problems, "")
    unreached = [node.name for node in cluster.nodes if node.name in facts["reach"].missing | launch.missing]
    if unreached:
        return Verdict(check, "warn", f"not tried without {some(unreached, between=', ')}", "fab status")
    links = facts["ssh"]
    if links.missing or any(value["wrong"] for value in links.values.values()):
        return Verdict(check, "warn", "not tried: SSH between the nodes is broken", "fab wait")
    return None


def mpirun(cluster: SshCluster, run: Run) -> Verdict:
    """Whether every node said its name."""
    names = [node.name for node in cluster.nodes]
    said = {names[event["rank"]]: event["hostname"] for event in run.of("hello")}
    silent = [name for name in names if name not in said]
    again = f"fab ssh {silent[0] if silent else cluster.head.name}"
    problems = []
    if len(silent) == len(names) and run.left_over:
        # mpirun starts nothing anywhere before it has all nodes.
        problems.append(Problem("fail", f"mpirun: {run.failed or 'nothing started'}", f"fab ssh {min(run.left_over)}"))
    elif silent:
        why = f" ({run.failed})" if run.failed else ""
        problems.append(Problem("fail", f"{some(silent, between=', ')} did not answer to mpirun{why}", again))
    elif run.failed:
        problems.append(Problem("fail", f"mpirun: {run.failed}", again))
    problems += left_over(run)
    return judge("mpirun", problems, f"{len(names)} of {len(names)} nodes answer, started over SSH from {names[0]}")


def network(cluster: SshCluster, run: Run) -> Verdict:
    """The verdict on the links and the all-reduce."""
    names = [node.name for node in cluster.nodes]
    results = run.of("result")
    if not results:
        return judge("all-reduce", [broken_off(cluster, names, run), *left_over(run)], "")
    result = results[-1]
    problems = [*slow_links(names, result["links"]), *left_over(run)]
    if result["wrong"]:
        text = f"the sum over all nodes is wrong in {result['wrong']} places"
        problems.insert(
            0, Problem("fail", text, "fab run 'sudo dmesg | tail' (memory and network errors), then fab check")
        )
    if len(names) == 1:
        return judge("all-reduce", problems, "one node: there are no links to measure; torch and gloo work")
    whole = f"all-reduce of {result['bytes'] / 2**20:.0f} MiB {rate(result['algbw'])} (bus {rate(result['busbw'])})"
    found = measured(result["links"])
    todo = len(names) * (len(names) - 1)
    links = f"{len(found)} links {spread(found.values())}"
    if len(found) < todo:
        links = f"{len(found)} of {todo} links measured in their time, {spread(found.values())}"
    if problems:
        problems[0] = Problem(problems[0].level, f"{problems[0].text}; {whole}", problems[0].mend)
    return judge("all-reduce", problems, f"{links}; {whole}, values right")


def slow_links(names: Sequence[str], links: Sequence[Sequence[float | None]]) -> list[Problem]:
    """At most one problem: the culprit, how slow it is, and what is usual."""
    found, weak = measured(links), slow(links)
    if not weak:
        return []
    best, worst = max(found.values()), min(weak.values())
    culprits = blame(links, names)
    look = f"fab ssh {culprits[0].split()[0]}, then: ip -s link; tc qdisc; ethtool"
    text = f"slow: {some(culprits, between=', ')}: {rate(worst)}, the best link {rate(best)}"
    return [Problem("fail" if worst < BAD * best else "warn", text, look)]


def broken_off(cluster: SshCluster, names: Sequence[str], run: Run) -> Problem:
    """Why there is no result: a rank that fell silent, else the link that was being used."""
    phases = {int(event["rank"]): event["phase"] for event in run.events if "phase" in event}
    if run.silent:
        quiet = some((names[rank] for rank in run.silent), between=", ")
        during = phases.get(0) or "the start"
        return Problem(
            "fail", f"{quiet} stopped answering during: {during} (hung, or cut off)", f"fab ssh {names[run.silent[0]]}"
        )
    errors = run.of("error")
    if not phases and run.left_over:
        cut = sorted(run.left_over)
        return Problem("fail", f"{some(cut, between=', ')} stopped answering before the start", f"fab ssh {cut[0]}")
    if not errors:
        return Problem("fail", run.failed or "no result", f"fab ssh {names[0]}")
    # A rank that only waited for its turn has nothing to say about the cause.
    told = [event for event in errors if "waiting" not in event["phase"]] or errors
    event = told[0]
    text = f"{names[event['rank']]} in {event['phase']}: {named(event['error'], cluster)}"
    return Problem("fail", text[:300], f"open all TCP ports between the nodes (gloo waits {GLOO_S} s), then fab check")


def named(text: str, cluster: SshCluster) -> str:
    """An error with the nodes' names for their addresses."""
    for node in sorted(cluster.nodes, key=lambda node: -len(node.private_ip)):
        text = text.replace(node.private_ip, node.name)
    return text


def left_over(run: Run) -> list[Problem]:
    """A warning for each node that could not be cleaned up."""
    return [
        Problem(
            "warn", f"{name} could not be cleaned up ({why}): its systemd ends the rest by itself", f"fab ssh {name}"
        )
        for name, why in sorted(run.left_over.items())
    ]
