"""Start a job over SSH: plan its launch, ask the nodes whether they can run it, and create it on the head."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from invoke.exceptions import Exit

from fabfile import launchers
from fabfile.backends.base import CannotStart
from fabfile.backends.job_answer import check_job_id
from fabfile.backends.ssh.head import Head, runs
from fabfile.backends.submission import Submission, Submitted
from fabfile.launchers import KEEPERS, HeadValues, Launch, LaunchError, plans
from fabfile.launchers.program import WORK, completed, process_environment
from fabfile.output import plural
from fabfile.remote.deploy import Deployed, package
from infra.inventory import Node, SshCluster
from node.job.spec import JobSpec

_VARIABLES = """
# found by the head at the start: $MASTER_PORT, a free one; $INTERFACE, towards the other nodes;
# $BEGAN, the time of the job's start without its pauses (where the nodes have a price);
# $FOLDER, with the hostfile and the strict ssh that starts each node's part in a scope of its own.
# added on every node: what /etc/trainyard/runtime.env says (tcmalloc), TRAINYARD_COLLECTIVES, the
# interface for gloo, nccl and libfabric, the rank's cores of a NUMA node, with ccl its worker's core.
"""
_CHOSEN = """# this is for the first nodes; it runs on {}.
# Where the head is not the first of them the keeper on each node starts the ranks, and not mpirun.
"""


@dataclass(frozen=True)
class Choice:
    """The nodes among which the head chooses those of a job."""

    there: tuple[Node, ...] = ()  # that answer, the head first; none: it does not choose, and takes the first ones
    among: tuple[str, ...] = ()  # the names of those that may be the job's

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Those that may be the job's."""
        return tuple(node for node in self.there if node.name in self.among)


def launch_of(cluster: SshCluster, submission: Submission) -> Launch:
    """The job on its nodes; a new one has no number yet and is called `NAME-N`."""
    begun = submission.begun
    name = begun.id if begun else f"{submission.name}-N"
    nodes = cluster.nodes[: submission.nodes]
    return Launch(
        id=name,
        nodes=nodes,
        run_dir=f"~/{runs(cluster)}/{name}",
        code=f"~/.cache/trainyard/code/{package().hash}",
        interface=cluster.interface,
        usd_per_hour=round(cluster.job_node_usd * len(nodes), 6),
        threads=submission.threads,
        resume=begun is not None,
        program=submission.program,
        elastic=submission.elastic,
    )


def may_choose(cluster: SshCluster, submission: Submission) -> bool:
    """Whether the head chooses the nodes, as a job is to have some of several that are alike. Not for a managed job,
    nor with a launcher that was asked for: these run on the first nodes."""
    alike = {(node.slots, node.cores_per_slot, node.gpus) for node in cluster.nodes}
    return not bound_by(submission) and submission.nodes < len(cluster.nodes) and len(alike) == 1


def bound_by(submission: Submission) -> str:
    """The option with which a job runs on the first nodes, whichever are free; empty: without one."""
    if submission.launcher:
        return f"--launcher {submission.launcher}"
    return "--managed" if submission.on_first else ""


def candidates(cluster: SshCluster, submission: Submission) -> tuple[Node, ...]:
    """The nodes that may be the job's."""
    return cluster.nodes if may_choose(cluster, submission) else cluster.nodes[: submission.nodes]


def choice(cluster: SshCluster, submission: Submission, answers: Mapping[str, Deployed]) -> Choice:
    """Among which of the nodes that answer the head chooses: a program that goes on stays on those with its directory.
    A new one gets the free ones, as its directory is brought to all of these. CannotStart if too few answer."""
    wanted = _with_its_directory(cluster, submission) or [node.name for node in cluster.nodes]
    among = [name for name in wanted if name in answers]
    if len(among) < submission.nodes:
        silent = ", ".join(name for name in wanted if name not in answers)
        raise CannotStart(f"{silent}: no answer; {submission.nodes} nodes wanted, {len(among)} there")
    if submission.program and not (submission.begun or submission.queue):
        among = [name for name in among if not answers[name].busy]
    return Choice(tuple(node for node in cluster.nodes if node.name in answers), tuple(among))


def _with_its_directory(cluster: SshCluster, submission: Submission) -> tuple[str, ...]:
    """The names of the nodes on which a program that goes on stays; empty: it may have any."""
    begun = submission.begun
    stays = begun and submission.program and not cluster.shared_dir and len(begun.on) >= submission.nodes
    return begun.on if begun and stays else ()


def launcher_of(cluster: SshCluster, submission: Submission) -> str:
    """What starts the ranks. Exit 2 for an unknown launcher, and for one that cannot start this job."""
    launcher = submission.launcher or cluster.launcher
    if submission.begun and submission.begun.files_on and (option := bound_by(submission)):
        there = f"{submission.begun.id} has its files on {submission.begun.files_on}"
        raise Exit(f"{option}: for jobs that begin on the head; {there}: leave it out", code=2)
    if submission.elastic and submission.launcher:
        raise Exit(f"--launcher {submission.launcher}: an elastic job has a launcher of its own: leave it out", code=2)
    if launcher not in launchers.NAMES:
        raise Exit(f"--launcher {launcher}: must be {' or '.join(launchers.NAMES)}", code=2)
    return KEEPERS if submission.elastic else launcher


def shown(cluster: SshCluster, submission: Submission) -> str:
    """Exactly what would run; values that only the head knows at the start are shown as variables. Exit 2 for an
    unknown launcher, or one that cannot start this job."""
    launcher, launch = launcher_of(cluster, submission), launch_of(cluster, submission)
    try:
        plan = plans.plan(launcher, launch, HeadValues())
    except LaunchError as error:
        raise Exit(str(error), code=2) from None
    chosen = _CHOSEN.format(_where(cluster, submission)) if may_choose(cluster, submission) else ""
    return f"{launchers.shown(plan)}\n{_VARIABLES}{chosen}{job_file(launch, submission)}"


def _where(cluster: SshCluster, submission: Submission) -> str:
    """On which nodes a job runs for which the head chooses them, for a dry run."""
    before = submission.begun.on if submission.begun and not cluster.shared_dir else ()
    if not before:
        return "the first that are free"
    stays = _with_its_directory(cluster, submission)
    others = f", and the first others{' of ' * bool(stays)}{', '.join(stays)} that are free"
    return f"{before[0]}, which has its files{others if submission.nodes > 1 else ''}"


def job_file(launch: Launch, submission: Submission) -> str:
    """The end of a dry run: the job.toml, or what else a program gets."""
    program = submission.program
    if program is None:
        memory = f"\n# {submission.job.memory}" if submission.job and submission.job.memory else ""
        return f"{memory}\n# {launch.run_dir}/job.toml\n{submission.text.rstrip()}"
    places = process_environment(launch.nodes, program.per, 0)
    numbers = {name: f"${name}" for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")}
    command = completed(program, launch.nodes, numbers)
    lines = [f"# in {launch.run_dir}/{WORK}, on every node that has a process; of the first one:"]
    lines += [f"{name}={value}" for name, value in places.items()]
    lines += [f"{name}={shlex.quote(value)}" for name, value in program.environment]
    lines += [f"{name}=...   # a secret" for name in program.secrets]
    lines += [f"# runs as\n{shlex.join(command)}"] if command != list(program.argv) else []
    lines += [f"# {submission.snapshot.summary}"] if submission.snapshot else []
    lines += ["# more packages", program.requirements.rstrip()] if program.requirements else []
    return "\n" + "\n".join(lines)


def refuse(answers: Mapping[str, Deployed], *, free: int, prepare: str) -> None:
    """Exit 2 if the data on the nodes do not fit the job, CannotStart if fewer than `free` nodes are without a job; 0
    for a job that waits for them. `prepare` is the command that makes the data."""
    for name, answer in answers.items():
        if answer.problem:
            mend = f"; run: {prepare}" if answer.problem.endswith("no such folder") else ""
            raise Exit(f"{name}: {answer.problem.removeprefix('error: ')}{mend}", code=2)
    busy = {name: answer.busy for name, answer in answers.items() if answer.busy}
    if len(answers) - len(busy) < free:
        raise CannotStart(f"{', '.join(busy)}: busy with {', '.join(sorted(set(busy.values())))}")


def spec_of(head: Head, submission: Submission, taken: Sequence[str], choice: Choice = Choice()) -> JobSpec:
    """What the head is asked to create; the job's id must not be in `taken`. `choice`: among which the head chooses."""
    begun, cluster = submission.begun, head.cluster
    launch = launch_of(cluster, submission)
    return JobSpec(
        name=submission.name,
        job=submission.text,
        program=submission.program,
        runs=runs(cluster),
        code=head.folder,
        launcher=KEEPERS if submission.elastic else submission.launcher or cluster.launcher,
        elastic=submission.elastic,
        cluster=replace(cluster, nodes=choice.there or launch.nodes),
        count=submission.nodes if choice.there else 0,
        among=choice.among,
        timeout=submission.timeout,
        threads=submission.threads,
        time_limit=submission.time_limit,
        restarts=submission.restarts,
        after_losses_only=submission.after_losses_only,
        resume=begun.id if begun else "",
        mirrored=bool(begun and begun.mirrored),
        taken=tuple(taken),
        queue=submission.queue,
        price_per_hour=launch.usd_per_hour,
    )


def secrets(submission: Submission) -> dict[str, str]:
    """The operator's variables that are on no disk: for the trainer a tracker's key, which rank 0 alone gets; for a
    program those that the user has named. Exit 2 for one of these that is not set."""
    if submission.program is None:
        return {name: value for name, value in os.environ.items() if name.startswith("WANDB_")}
    for name in submission.program.secrets:
        if name not in os.environ:
            raise Exit(f"secret {name}: is not set here: its value is taken from this command's environment", code=2)
    return {name: os.environ[name] for name in submission.program.secrets}


def ask_to_create(head: Head, spec: JobSpec, secrets: Mapping[str, str]) -> dict[str, Any]:
    """Create the job on the head, with its secrets; returns its answer. CannotStart; exit 2 for what none can have."""
    answer: dict[str, Any] = head.ask("create", stdin={**spec.to_record(), "secrets": dict(secrets)})
    if "wrong" in answer:
        raise Exit(answer["wrong"], code=2)
    if "refused" in answer:
        raise CannotStart(answer["refused"])
    try:
        job = check_job_id(answer.get("id"))
    except ValueError as error:
        raise Exit(f"{head.node.name}: create: its answer cannot be read: {error}", code=1) from None
    if spec.resume and job != spec.resume:
        raise Exit(f"{head.node.name}: create: it has begun {job} in place of {spec.resume}", code=1)
    return answer


def create(head: Head, submission: Submission, taken: Sequence[str], choice: Choice) -> Submitted:
    """Create the job's number, directory and service on the head; its id must not be in `taken`. `choice`: among which
    nodes the head chooses, if it does. Raises CannotStart."""
    spec = spec_of(head, submission, taken, choice)
    answer = ask_to_create(head, spec, secrets(submission))
    where = ", ".join(answer["nodes"]) or f"the first {plural(submission.nodes, 'node')} to be free"
    return Submitted(answer["id"], answer["log"], where)
