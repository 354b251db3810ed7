"""`fab train`: a job from its file to its end, on all nodes or some."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import launchers
from fabfile.deploy import Deployed, deploy, package
from fabfile.jobs import mirror
from fabfile.jobs import resume as resuming
from fabfile.jobs.follow import Wanted, follow
from fabfile.jobs.head import Head, runs
from fabfile.jobs.job_file import Resolved, known_jobs, resolve
from fabfile.jobs.resume import Before
from fabfile.launchers import Found, Launch, LaunchError, plans
from fabfile.output import interruptible, next_command, say
from fabfile.ssh import Fleet
from fabfile.targets import load
from infra.inventory import Node, SshCluster, to_json

INTERRUPTED = 130
_OR_QUEUE = "   (or wait for the nodes: fab train ... --queue)"


@task(
    iterable=["set_"],
    positional=["job"],
    help={
        "job": "a job's TOML file, or the name of one in training/jobs",
        "set": "section.key=value, over the file; also without --set",
        "nodes": "how many nodes, the head among them; default: all",
        "resume": "go on with this job (its id, its number, latest) from its last checkpoint, with its own settings",
        "detach": "do not follow the job",
        "queue": "wait for nodes that another job has",
        "dry-run": "print what would run, and touch nothing",
        "restarts": "how often to start again, from the last checkpoint and on the nodes that are left",
        "launcher": "mpirun, or torchrun for one node",
        "stack": "the stack",
        "inventory": "an inventory file instead of a stack",
    },
)
def train(
    _c: Context,
    job: str = "",
    set_: Sequence[str] | None = None,
    nodes: int = 0,
    resume: str = "",
    detach: bool = False,
    queue: bool = False,
    dry_run: bool = False,
    restarts: int = 0,
    launcher: str = "",
    stack: str = "",
    inventory: str = "",
) -> None:
    """Train on the cluster: JOB section.key=value ..., or --resume ID; follows the job, which goes on without you."""
    cluster = load(stack, inventory)
    launcher = launcher or cluster.launcher
    if not (job or resume):
        raise Exit(f"which job? fab train JOB, or fab train --resume ID; {known_jobs()}", code=2)
    if not resume:
        chosen = choose(cluster, nodes)
        resolved = resolve(job, set_ or (), sum(node.slots for node in chosen), mirror.address(cluster))
        launch = launch_of(cluster, chosen, resolved, f"{resolved.name}-N")
        check(launcher, launch, restarts)
        if dry_run:
            say(dry(launcher, launch, resolved))
            return
    with interruptible(), Fleet(cluster) as fleet:
        before = None
        if resume:
            before = resuming.before(Head(fleet), resume, job, set_ or ())
            chosen = resuming.nodes(cluster, before, len(choose(cluster, nodes)) if nodes else 0)
            resolved = resuming.settings(before, job, set_ or (), sum(node.slots for node in chosen))
            launch = launch_of(cluster, chosen, resolved, before.id, resume=True)
            check(launcher, launch, restarts)
            if dry_run:
                say(dry(launcher, launch, resolved))
                return
        started = start(fleet, launcher, launch, resolved, before=before, queue=queue, restarts=restarts)
        if detach:
            say(next_command(f"fab logs {started['id']} --follow") + f"   (stop: fab stop {started['id']})")
            return
        watch(Head(fleet), started["id"], started["log"])


def launch_of(
    cluster: SshCluster, chosen: tuple[Node, ...], resolved: Resolved, name: str, *, resume: bool = False
) -> Launch:
    """The job on these nodes, under its id."""
    return Launch(
        id=name,
        nodes=chosen,
        run_dir=f"~/{runs(cluster)}/{name}",
        code=f"~/.cache/trainyard/code/{package().hash}",
        interface=cluster.interface,
        usd_per_hour=round(cluster.hourly_usd * len(chosen) / len(cluster.nodes), 6),
        threads=resolved.threads,
        resume=resume,
    )


def choose(cluster: SshCluster, count: int) -> tuple[Node, ...]:
    """The first `count` nodes; the head is among them, as it starts the job."""
    if not 0 <= count <= len(cluster.nodes):
        raise Exit(f"--nodes {count}: {cluster.name} has {len(cluster.nodes)}", code=2)
    return cluster.nodes[: count or len(cluster.nodes)]


def check(launcher: str, launch: Launch, restarts: int) -> None:
    """What can be known to be wrong before anything is asked of a node."""
    if launcher not in launchers.NAMES:
        raise Exit(f"--launcher {launcher}: must be {' or '.join(launchers.NAMES)}", code=2)
    if restarts < 0:
        raise Exit(f"--restarts {restarts}: must be 0 or more", code=2)
    try:
        plans.plan(launcher, launch, Found())
    except LaunchError as error:
        raise Exit(str(error), code=2) from None


def dry(launcher: str, launch: Launch, resolved: Resolved) -> str:
    """Exactly what would run; what only the head can tell when it starts stands as a variable."""
    plan = plans.plan(launcher, launch, Found())
    return "\n".join(
        [
            launchers.shown(plan),
            "",
            "# found by the head at the start: $MASTER_PORT, a free one; $INTERFACE, towards the other nodes;",
            "# $BEGAN, the time of the job's start without its pauses (where the nodes have a price);",
            "# $FOLDER, with the hostfile and the strict ssh that starts each node's part in a scope of its own.",
            "# added on every node: what /etc/trainyard/runtime.env says (tcmalloc), TRAINYARD_COLLECTIVES, the",
            "# interface for gloo, nccl and libfabric, the rank's cores of a NUMA node, with ccl its worker's core.",
            "",
            f"# {launch.run_dir}/job.toml",
            resolved.text.rstrip(),
        ]
    )


def start(
    fleet: Fleet,
    launcher: str,
    launch: Launch,
    resolved: Resolved,
    *,
    before: Before | None,
    queue: bool,
    restarts: int,
) -> dict[str, Any]:
    """The programs on the nodes, the job checked against their data, its number, its service: {"id", "log"}, where
    `log` is how many bytes of its log were there before. `before`: the job to go on with, if any."""
    cluster = fleet.cluster
    answers = deploy(fleet, launch.nodes, resolved.text, launch.ranks)
    refuse(answers, queue=queue)
    folder = answers[cluster.head.name].folder
    taken = [] if before else mirror.folders(Head(fleet, folder), resolved.mirror)
    spec = {
        "name": resolved.name,
        "job": resolved.text,
        "runs": runs(cluster),
        "code": folder,
        "launcher": launcher,
        "cluster": json.loads(to_json(dataclasses.replace(cluster, nodes=launch.nodes))),
        "timeout": resolved.timeout,
        "threads": resolved.threads,
        "restarts": restarts,
        "resume": before.id if before else "",
        "mirrored": bool(before and before.mirrored),
        "taken": taken,
        "queue": queue,
        "price_per_hour": launch.usd_per_hour,
        "secrets": {name: value for name, value in os.environ.items() if name.startswith("WANDB_")},
    }
    answer: dict[str, Any] = Head(fleet, folder).ask("create", told=spec)
    if "refused" in answer:
        raise Exit(f"{answer['refused']}\n{next_command('fab jobs')}{_OR_QUEUE}", code=1)
    names = ", ".join(node.name for node in launch.nodes)
    say(f"{answer['id']}: {launch.ranks} rank{'s' * (launch.ranks > 1)} on {names}")
    return answer


def refuse(answers: dict[str, Deployed], *, queue: bool) -> None:
    """A job that the nodes' data do not fit, or nodes that another job has."""
    for name, answer in answers.items():
        if answer.problem:
            raise Exit(f"{name}: {answer.problem.removeprefix('error: ')}", code=2)
    busy = {name: answer.busy for name, answer in answers.items() if answer.busy}
    if busy and not queue:
        ids = ", ".join(sorted(set(busy.values())))
        line = f"{', '.join(busy)}: busy with {ids}"
        raise Exit(f"{line}\n{next_command('fab jobs')}{_OR_QUEUE}", code=1)


def watch(head: Head, job: str, offset: int = 0) -> None:
    """Follow the job; Ctrl-C leaves it running, its end is this program's end. Leaves out `offset` bytes of its log."""
    try:
        ended = follow(head, Wanted(job, offset=offset))
    except KeyboardInterrupt:
        raise Exit(
            f"\n{job} goes on without you\n{next_command(f'fab logs {job} --follow')}   (stop: fab stop {job})",
            code=INTERRUPTED,
        ) from None
    end(ended)


def end(ended: dict[str, Any]) -> None:
    """What to do next; the job's exit code is the verb's."""
    job = ended["id"]
    if ended["state"] == "SUCCEEDED":
        say(next_command(f"fab sample {job} --prompt ...") + f"   (files: fab fetch {job})")
        return
    again = f"   (go on: fab train --resume {job})"
    raise Exit(next_command(f"fab logs {job}") + again, code=ended["exit_code"] or 1)
