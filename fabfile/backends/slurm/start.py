"""Start a job with Slurm: its batch script, what a dry run shows of it, and its creation on the head."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from invoke.exceptions import Exit

from fabfile import launchers
from fabfile.backends.base import OtherJob
from fabfile.backends.ssh import start as over_ssh
from fabfile.backends.ssh.head import Head
from fabfile.backends.submission import Submission, Submitted
from fabfile.launchers import SLURM, HeadValues, Launch, LaunchError, plans, sbatch
from fabfile.launchers.sbatch import Batch
from fabfile.remote.deploy import package
from fabfile.token_sets.token_set import check_queue, is_shared
from infra.inventory import SshCluster
from node.job.spec import job_nodes

_VARIABLES = """
# found by the supervisor when Slurm has chosen the nodes: $NODES, which these are; $MASTER_ADDR, the address of the
# first; $MASTER_PORT, a free one there; $INTERFACE, its interface towards the others (with GPUs); $BEGAN, the job's
# start without its pauses (where the nodes have a price).
# added on every node: what /etc/trainyard/runtime.env says (tcmalloc), TRAINYARD_COLLECTIVES, the
# interface for gloo, nccl and libfabric, the rank's cores of a NUMA node, with ccl its worker's core.
# before it, a step on each node that watches the ranks: srun ... launch keep
"""
_SIGNAL = f"""# A dry run does not ask Slurm for the partition's time limit. If that is under
# {sbatch.WARNING * 4 // 60} minutes, a job without a --time-limit is submitted with a --signal of a quarter of it.
"""


def check_launcher(submission: Submission) -> None:
    """Exit 2 for a launcher other than Slurm's, and for an elastic job."""
    if submission.elastic:
        raise Exit("--elastic: not with Slurm, whose srun ends all ranks when one is lost: use --restarts", code=2)
    if submission.launcher not in ("", SLURM):
        raise Exit(f"--launcher {submission.launcher}: Slurm starts the jobs of this cluster: leave it out", code=2)


def check_data(cluster: SshCluster, submission: Submission) -> None:
    """Exit 2 for a job whose data the machines that Slurm starts for it would not have."""
    if submission.job is not None:
        check_queue(cluster, _data_path(submission))


def code_folder(cluster: SshCluster) -> str:
    """The folder with the versions of our programs, which all nodes share."""
    return f"{cluster.shared_dir.rstrip('/')}/.trainyard/code"


def launch_of(cluster: SshCluster, submission: Submission) -> Launch:
    """The job on as many nodes as it asks for; which ones Slurm chooses."""
    launch = over_ssh.launch_of(replace(cluster, nodes=job_nodes(cluster)), submission)
    run_dir = launch.run_dir.removeprefix("~/")
    return replace(launch, run_dir=run_dir, code=f"{code_folder(cluster)}/{package().hash}")


def shown(cluster: SshCluster, submission: Submission) -> str:
    """The batch script as it is submitted, and the srun that it ends in. Slurm is not asked: a
    comment in the output says where its answers would change the script. Exit 2 for what cannot work."""
    check_launcher(submission)
    check_data(cluster, submission)
    launch = launch_of(cluster, submission)
    node = launch.nodes[0]
    batch = Batch(
        id=launch.id,
        partition=cluster.queue.name if cluster.queue else "",
        nodes=len(launch.nodes),
        slots=node.slots,
        gpus=node.gpus,
        run_dir=launch.run_dir,
        program=f"{launch.code}/launch",
        restarts=submission.restarts,
        time_limit=submission.time_limit,
    )
    try:
        plan = plans.plan(SLURM, launch, HeadValues())
    except LaunchError as error:
        raise Exit(str(error), code=2) from None
    text = sbatch.script(batch).rstrip()
    srun = launchers.shown(plan, where="the ranks' environment on the job's first node")
    found = _VARIABLES if submission.time_limit else _VARIABLES + _SIGNAL
    job = over_ssh.job_file(launch, submission)
    return f"# sbatch {launch.run_dir}/{sbatch.SCRIPT}\n{text}\n\n{srun}\n{found}{job}"


def has_shared_data(cluster: SshCluster, submission: Submission) -> bool:
    """Whether a job's data are in the folder that all nodes share, or it is a program, whose data we do not know."""
    return submission.job is None or is_shared(_data_path(submission), cluster.shared_dir)


def _data_path(submission: Submission) -> str:
    path: str = tomllib.loads(submission.text)["data"]["path"]
    return path


def create(head: Head, submission: Submission, taken: Sequence[str], code: str) -> Submitted:
    """Create the job's number and directory on the head, and submit it to Slurm; its id must not be in `taken`. `code`:
    the folder with our programs, shared by all nodes. Raises CannotStart if its nodes are taken, and it is not to wait,
    or if Slurm refuses it."""
    spec = over_ssh.spec_of(head, submission, taken)
    price = launch_of(head.cluster, submission).usd_per_hour
    spec = replace(spec, launcher=SLURM, cluster=head.cluster, count=submission.nodes, code=code)
    spec = replace(spec, price_per_hour=price)
    answer = over_ssh.ask_to_create(head, spec, over_ssh.secrets(submission))
    nodes = "1 node" if submission.nodes == 1 else f"{submission.nodes} nodes"
    return Submitted(answer["id"], answer["log"], f"{nodes}, as Slurm's job {answer['slurm']}")


def other_job(record: Mapping[str, Any]) -> OtherJob:
    """A job that somebody submitted by hand, from the head's answer."""
    keys = ("id", "user", "name", "state", "nodes", "count", "submitted", "started")
    return OtherJob(**{key: record[key] for key in keys})
