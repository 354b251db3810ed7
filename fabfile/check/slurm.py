"""The pre-flight's last part where Slurm runs the jobs: what sinfo says, munge, and an all-reduce that srun starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Mapping
from dataclasses import replace

from fabfile.check import launch, network_rules
from fabfile.check.launch import Sessions
from fabfile.check.measurement import GPUS, LINKS, Measurement
from fabfile.check.node_rules import CLOCKS
from fabfile.check.verdict import Fact, Problem, Verdict, judge, some
from fabfile.launchers.program import SLOT
from fabfile.output import plural
from fabfile.remote import slurm_nodes
from fabfile.remote.fleet import Fleet
from fabfile.remote.slurm_nodes import NoAnswer, State
from infra.inventory import SshCluster
from node.job.spec import job_nodes

_SECONDS = 30.0
_CLOCK = {15: "an expired one", 16: "one from the future"}
"""unmunge's exit codes for a credential that was made minutes ago, or will be, by its own clock."""
_MUNGE = "fab ssh {name}, then: sudo systemctl status munge; its key /etc/munge/munge.key must be the same on all nodes"


def verdicts_of(
    cluster: SshCluster, fleet: Fleet, sessions: Sessions, facts: Mapping[str, Fact]
) -> Generator[Verdict, None, None]:
    """Yield each check's verdict as soon as it is known. `sessions`: the nodes that are reached."""
    if cluster.head.name not in sessions:
        yield Verdict("slurm", "warn", f"not tried without {cluster.head.name}", "fab status")
        return
    try:
        states = slurm_nodes.states(fleet)
        first = nodes(states)
    except NoAnswer as error:
        look = f"fab ssh {cluster.head.name}, then: sudo journalctl -u slurmctld"
        states, first = {}, Verdict("slurm", "fail", f"slurmctld does not answer: {error}", look)
    yield first
    yield munge(cluster, fleet, sessions)
    for what in (LINKS, *([GPUS] if all(node.gpus for node in job_nodes(cluster)) else [])):
        found = Verdict(what.check, "warn", "not tried: Slurm cannot use all nodes", first.mend or "fab wait")
        if first.level == "pass":
            found = (
                network_rules.lacking(what.check, cluster, facts)
                or not_tried(cluster, states, what.check)
                or measured(cluster, sessions, what)
            )
        yield found
        if found.level != "pass":
            return


def nodes(states: Mapping[str, State]) -> Verdict:
    """Whether Slurm can use every node that runs jobs."""
    wrong = [Problem("fail", f"{name} is {state}", "fab wait") for name, state in states.items() if not state.is_usable]
    counts = Counter(state.word for state in states.values())
    return judge("slurm", wrong, f"{len(states)} nodes: {', '.join(f'{n} {word}' for word, n in counts.items())}")


def munge(cluster: SshCluster, fleet: Fleet, reached: Collection[str]) -> Verdict:
    """Whether each node that is reached takes a credential that the head has just made: keys and clocks agree."""
    head = cluster.head
    made = fleet.run("munge --no-input", nodes=[head], timeout=_SECONDS)[head.name]
    if not made.ok:
        return Verdict("munge", "fail", f"{head.name}: {made.why}", _MUNGE.format(name=head.name))
    ask = f"echo {made.stdout.strip()} | unmunge --keys=STATUS --output=/dev/null"
    asked = [node for node in cluster.nodes if node.name in reached]
    answers = fleet.run(ask, nodes=asked, timeout=_SECONDS)
    problems = []
    for name, answer in answers.items():
        if age := _CLOCK.get(answer.exited):
            why = f"{name} takes a new credential of {head.name} for {age}: their clocks are minutes apart"
            problems.append(Problem("fail", why, CLOCKS))
        elif not answer.ok:
            problems.append(Problem("fail", f"{name}: {answer.why}", _MUNGE.format(name=name)))
    return judge("munge", problems, f"a credential of {head.name} is taken on {plural(len(asked), 'node')}")


def not_tried(cluster: SshCluster, states: Mapping[str, State], check: str) -> Verdict | None:
    """Why the measurement is not tried: a job has nodes, or machines would be started for it. None: it can be."""
    queue, count = cluster.queue, len(states)
    if all(state.is_there for state in states.values()):
        return None
    if queue and not any("alloc" in state.word or "mix" in state.word for state in states.values()):
        price = f" (${queue.hourly_usd * count:.2f} an hour)" if queue.hourly_usd else ""
        why = f"not tried: Slurm would start {plural(count, 'machine')} for it{price}"
        return Verdict(
            check, "warn", why, f"fab launch --per node --nodes {count} -- true, then fab check while they run"
        )
    taken = [f"{name} is {state}" for name, state in states.items() if not state.is_there]
    return Verdict(check, "warn", f"not tried: {some(taken, between=', ')}", "fab jobs")


def measured(cluster: SshCluster, sessions: Sessions, what: Measurement) -> Verdict:
    """Measure in a job of Slurm's, and judge it with the nodes in the order of its ranks."""
    there = {node.name: node for node in job_nodes(cluster)}
    ranks = sum(node.slots for node in there.values()) if what.per == SLOT else len(there)
    session = sessions[cluster.head.name]
    probe = what.argv("{program}")  # the head puts the path of its own program there
    run = launch.on_slurm(cluster, session, per=what.per, probe=probe, seconds=what.seconds, ranks=ranks)
    for event in run.of("refused"):
        return Verdict(what.check, "warn", f"not tried: {event['why']}", "fab jobs")
    names: list[str] = next((event["names"] for event in run.of("nodes")), list(there))
    found = what.judge(replace(cluster, nodes=tuple(there[name] for name in names if name in there)), run)
    return replace(found, found=f"{found.found}, started by srun") if found.level == "pass" else found
