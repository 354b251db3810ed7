"""Run jobs with Slurm. The head is reached over SSH, and a job's files are read there as over SSH: see SshBackend.

A job is one batch script, whose program is the same supervisor that runs on the head of a cluster without Slurm. Slurm
chooses its nodes and starts its ranks with srun. Run directories and code are in the cluster's shared folder.
"""

from __future__ import annotations

import sys
from typing import Any

from invoke.exceptions import Exit

from fabfile.backends.base import JobNode, OtherJob
from fabfile.backends.slurm import start
from fabfile.backends.ssh.backend import SshBackend
from fabfile.backends.ssh.head import runs
from fabfile.backends.ssh.start import refuse
from fabfile.backends.submission import Submission, Submitted
from fabfile.launchers import SLURM
from fabfile.output import say
from fabfile.remote.deploy import deploy
from infra.inventory import SshCluster
from node.job.spec import job_nodes


class SlurmBackend(SshBackend):
    """The jobs of a cluster on which Slurm runs them."""

    def __init__(self, cluster: SshCluster, timeout: float = 10) -> None:
        if not cluster.shared_dir:
            raise Exit(f"{cluster.name}: launcher = {SLURM!r} needs shared_dir, a folder that all nodes share", code=2)
        super().__init__(cluster, timeout)
        self._code = ""  # the shared folder with this checkout's programs; empty: not copied yet

    def nodes(self) -> tuple[JobNode, ...]:
        price = self.cluster.job_node_usd
        return tuple(JobNode.of(node, price) for node in job_nodes(self.cluster))

    def plan(self, submission: Submission) -> str:
        return start.shown(self.cluster, submission)

    def prepare(self, submission: Submission) -> None:
        start.check_launcher(submission)
        start.check_data(self.cluster, submission)
        code, ranks = start.code_folder(self.cluster), start.launch_of(self.cluster, submission).ranks
        head = self.cluster.head
        answers = deploy(self._fleet, [head], submission.text, ranks, code)
        # Slurm chooses the nodes, so each may be one of the job's; one that does not answer is not Slurm's choice.
        others = [] if start.has_shared_data(self.cluster, submission) else self.cluster.nodes[1:]
        answers |= deploy(self._fleet, others, submission.text, ranks, code, needed=False)
        refuse(answers, free=0, prepare=submission.prepare)
        self._code = answers[head.name].folder
        self._bring(submission, [head])
        self._taken = [] if submission.begun else self.mirrored(submission.mirror)

    def submit(self, submission: Submission) -> Submitted:
        return start.create(self._head, submission, self._taken, self._code)

    def other_jobs(self) -> list[OtherJob]:
        answer: dict[str, Any] = self._head.ask("slurm-jobs", runs(self.cluster))
        if "refused" in answer:
            say(f"warning: {self.host}: {answer['refused']}: only the jobs recorded here are shown", file=sys.stderr)
        return [start.other_job(record) for record in answer.get("jobs", ())]

    def stop(self, job: str, *, now: bool) -> None:
        answer = self._head.ask("slurm-stop", self._folder_of(job), "now" if now else "stop")
        if "refused" in answer:
            raise Exit(f"{self.host}: {answer['refused']}", code=1)
