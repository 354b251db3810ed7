"""`fab train`: a job from its file to its end, on all nodes or some."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import launchers
from fabfile.backends.ssh import mirror
from fabfile.backends.ssh import resume as resuming
from fabfile.backends.ssh.follow import Wanted, follow
from fabfile.backends.ssh.head import Head, runs
from fabfile.backends.ssh.resume import Before
from fabfile.command_line import AtLeast
from fabfile.job_file import Resolved, known_jobs, resolve
from fabfile.launchers import Found, Launch, LaunchError, plans
from fabfile.output import interrupted_later, next_command, say
from fabfile.remote.deploy import Deployed, deploy, package
from fabfile.remote.fleet import Fleet
from fabfile.targets import load
from infra.inventory import Node, SshCluster
from node.job.spec import JobSpec

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
        "every": "show each Nth step; default: one live line on a terminal, all steps elsewhere",
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
    nodes: Annotated[int, AtLeast(1)] | None = None,
    resume: str = "",
    detach: bool = False,
    every: Annotated[int, AtLeast(1)] | None = None,
    queue: bool = False,
    dry_run: bool = False,
    restarts: Annotated[int, AtLeast(0)] = 0,
    launcher: str = "",
    stack: str = "",
    inventory: str = "",
) -> None:
    """Train on the cluster: JOB section.key=value ..., or --resume ID; follows the job, which goes on without you."""
    created: dict[str, Any] = {}
    with _ctrl_c_says_what_runs(created):
        cluster = load(stack, inventory)
        launcher = launcher or cluster.launcher
        if not (job or resume):
            raise Exit(f"which job? fab train JOB, or fab train --resume ID; {known_jobs()}", code=2)
        if not resume:
            chosen = choose(cluster, nodes)
            resolved = resolve(job, set_ or (), sum(node.slots for node in chosen), mirror.address(cluster))
            launch = launch_of(cluster, chosen, resolved, f"{resolved.name}-N")
            check(launcher, launch)
            if dry_run:
                say(dry(launcher, launch, resolved))
                return
        with Fleet(cluster) as fleet:
            before = None
            if resume:
                before = resuming.before(Head(fleet), resume, job, set_ or ())
                chosen = resuming.nodes(cluster, before, len(choose(cluster, nodes)) if nodes else 0)
                resolved = resuming.settings(before, job, set_ or (), sum(node.slots for node in chosen))
                launch = launch_of(cluster, chosen, resolved, before.id, resume=True)
                check(launcher, launch)
                if dry_run:
                    say(dry(launcher, launch, resolved))
                    return
            prepare = shlex.join(["fab", "prepare", job or "JOB", *(set_ or ())])
            start(fleet, launcher, launch, resolved, created, prepare, before=before, queue=queue, restarts=restarts)
            if detach:
                say(next_command(f"fab logs {created['id']} --follow   (stop: fab stop {created['id']})"))
                return
            ended = follow(Head(fleet), Wanted(created["id"], offset=created["log"], every=every))
    end(ended)


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


def choose(cluster: SshCluster, count: int | None) -> tuple[Node, ...]:
    """The first `count` nodes; the head is among them, as it starts the job."""
    if count is not None and not 1 <= count <= len(cluster.nodes):
        raise Exit(f"--nodes {count}: {cluster.name} has {len(cluster.nodes)}; leave it out for all of them", code=2)
    return cluster.nodes[: count or len(cluster.nodes)]


def check(launcher: str, launch: Launch) -> None:
    """What can be known to be wrong before anything is asked of a node."""
    if launcher not in launchers.NAMES:
        raise Exit(f"--launcher {launcher}: must be {' or '.join(launchers.NAMES)}", code=2)
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
    created: dict[str, Any],
    prepare: str,
    *,
    before: Before | None,
    queue: bool,
    restarts: int,
) -> None:
    """The programs on the nodes, the job checked against their data, its number, its service. `created` gets {"id",
    "log"}, also when Ctrl-C comes meanwhile; `log` is how many bytes of its log were there before.

    `before` is the job to go on with, if any; `prepare` the command that makes the job's data.
    """
    cluster = fleet.cluster
    answers = deploy(fleet, launch.nodes, resolved.text, launch.ranks)
    refuse(answers, queue=queue, prepare=prepare)
    folder = answers[cluster.head.name].folder
    taken = [] if before else mirror.folders(Head(fleet, folder), resolved.mirror)
    spec = JobSpec(
        name=resolved.name,
        job=resolved.text,
        runs=runs(cluster),
        code=folder,
        launcher=launcher,
        cluster=dataclasses.replace(cluster, nodes=launch.nodes),
        timeout=resolved.timeout,
        threads=resolved.threads,
        restarts=restarts,
        resume=before.id if before else "",
        mirrored=bool(before and before.mirrored),
        taken=tuple(taken),
        queue=queue,
        price_per_hour=launch.usd_per_hour,
    )
    secrets = {name: value for name, value in os.environ.items() if name.startswith("WANDB_")}
    with interrupted_later():
        answer = Head(fleet, folder).ask("create", told={**spec.to_record(), "secrets": secrets})
        if "refused" in answer:
            raise Exit(f"{answer['refused']}\nnext: fab jobs{_OR_QUEUE}", code=1)
        created.update(answer)
        names = ", ".join(node.name for node in launch.nodes)
        say(f"{created['id']}: {launch.ranks} rank{'s' * (launch.ranks > 1)} on {names}")


def refuse(answers: dict[str, Deployed], *, queue: bool, prepare: str) -> None:
    """A job that the nodes' data do not fit, or nodes that another job has. `prepare` is the command for the data."""
    for name, answer in answers.items():
        if answer.problem:
            mend = f"; run: {prepare}" if answer.problem.endswith("no such folder") else ""
            raise Exit(f"{name}: {answer.problem.removeprefix('error: ')}{mend}", code=2)
    busy = {name: answer.busy for name, answer in answers.items() if answer.busy}
    if busy and not queue:
        ids = ", ".join(sorted(set(busy.values())))
        line = f"{', '.join(busy)}: busy with {ids}"
        raise Exit(f"{line}\nnext: fab jobs{_OR_QUEUE}", code=1)


@contextlib.contextmanager
def _ctrl_c_says_what_runs(created: dict[str, Any]) -> Iterator[None]:
    """Ctrl-C ends the verb, not the job: it says that the job goes on, or that none was started."""
    try:
        yield
    except KeyboardInterrupt:
        job = created.get("id")
        line = f"{job} goes on without you\nnext: fab logs {job} --follow   (stop: fab stop {job})"
        raise Exit(f"\n{line if job else 'interrupted: no job was started'}", code=INTERRUPTED) from None


def end(ended: dict[str, Any]) -> None:
    """What to do next; the job's exit code is the verb's."""
    job = ended["id"]
    if ended["state"] == "SUCCEEDED":
        say(next_command(f"fab sample {job} --prompt ...   (files: fab fetch {job})"))
        return
    again = f"   (go on: fab train --resume {job})"
    raise Exit(f"next: fab logs {job}{again}", code=ended["exit_code"] or 1)
