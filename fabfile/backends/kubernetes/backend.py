"""Run jobs on Kubernetes. What the SSH backend runs on a cluster's head runs here in a pod, the head pod, and a job's
files are read there in the same way: see SshBackend.

A job is a PyTorchJob, pods of Kubeflow's training operator, or a TrainJob, pods of Kubeflow Trainer. In the first of
them runs the same supervisor that runs on the head of a cluster without a scheduler. Run directories, code and data are
on the volume that all pods share.
"""

from __future__ import annotations

import functools
import shlex
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace

from invoke.exceptions import Exit

from fabfile.backends.base import JobNode, JobRecord, JobState, LogLine, LogPart, LogRequest, OtherJob, Unreachable
from fabfile.backends.kubernetes import jobs, nodes, pods, reasons, start, view, waiting
from fabfile.backends.kubernetes.api import Api
from fabfile.backends.kubernetes.errors import KubeError
from fabfile.backends.kubernetes.head_pod import HeadPods
from fabfile.backends.kubernetes.jobs import Over, Seen
from fabfile.backends.slurm import start as as_slurm
from fabfile.backends.ssh.backend import SshBackend
from fabfile.backends.ssh.head import Head, log_parts, lost_connections
from fabfile.backends.ssh.start import refuse
from fabfile.backends.submission import Submission, Submitted
from fabfile.container.repository import job_image
from fabfile.remote.deploy import deploy
from fabfile.remote.fleet import Connections, apart
from infra.inventory import KubeCluster
from node.job import endings
from node.job.spec import job_nodes

_NOW_SECONDS = 5.0  # for the supervisor to end a job at once; then its pods are deleted
_LEFT_SECONDS = 75.0  # for the pods of a finished job to go: 45 of them are theirs
_POLL = 0.3
_LOOK = 2.0  # seconds between two looks at the pods of a job that is followed and has not begun
_LOOK_BEGUN = 10.0  # the same for one that has


class KubernetesBackend(SshBackend):
    """The jobs of a Kubernetes cluster."""

    restarts = 3
    """Kubernetes makes a lost pod again, so a job need not wait for its user. As often as torch's LaunchConfig does it;
    a PyTorchJob's pods come again without a limit, a Job's six times, SkyPilot's managed jobs without one."""

    def __init__(self, cluster: KubeCluster, timeout: float = 10) -> None:
        if not (cluster.shared_dir and cluster.shared_claim):
            why = "jobs on Kubernetes need shared_dir and shared_claim, a volume that all pods share"
            raise Exit(f"{cluster.name}: {why}", code=2)
        super().__init__(view.of(cluster), timeout)
        self.kube = cluster
        self._asked: Api | None = None

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._asked:
            self._asked.close()

    @property
    def api(self) -> Api:
        """The cluster's API. Exit 2 without credentials."""
        self._asked = self._asked or Api(self.kube, self._timeout)
        return self._asked

    @property
    def connections(self) -> Connections:
        """The head pod as the one node of the cluster's view. To be closed."""
        self._opened = self._opened or HeadPods(self.api, self.kube, self.cluster)
        return self._opened

    @property
    def _fleet(self) -> Connections:
        return self.connections

    @property
    def _head(self) -> Head:
        if self._reached is None:
            if not self._folder:
                head, code = self.cluster.head, as_slurm.code_folder(self.cluster)
                self._folder = deploy(self._fleet, [head], code=code)[head.name].folder
            self._reached = Head(self._fleet, self._folder)
        return self._reached

    def reach(self) -> None:
        if self.api.get("Deployment", pods.HEAD) is None:
            raise Exit(f"{pods.HEAD} is not there: no job was ever started", code=1)

    def nodes(self) -> tuple[JobNode, ...]:
        price = self.cluster.job_node_usd
        return tuple(JobNode.of(node, price) for node in job_nodes(self.cluster))

    def plan(self, submission: Submission) -> str:
        return start.shown(self._of_jobs, self.cluster, submission)

    def prepare(self, submission: Submission) -> None:
        start.check(self._of_jobs, submission)
        seen = self._look()
        if not submission.queue:
            start.refuse_busy(submission.nodes, self.kube.workers, jobs.taken(seen, self._ended()))
        launch, head = start.launch_of(self.cluster, submission), self.cluster.head
        answers = deploy(self._fleet, [head], submission.text, launch.ranks, as_slurm.code_folder(self.cluster))
        refuse(answers, free=0, prepare=submission.prepare)
        self._bring(submission, [head])
        self._taken = [] if submission.begun else self.mirrored(submission.mirror)

    def submit(self, submission: Submission) -> Submitted:
        apart = self._never_beside(submission.nodes) if submission.nodes > 1 else ()
        return start.create(self.api, self._of_jobs, self._head, submission, self._taken, apart)

    def jobs(self) -> list[JobRecord]:
        seen = self._look()  # before the records, see Seen
        return [self._now(record, seen) for record in super().jobs()]

    def other_jobs(self) -> list[OtherJob]:
        return jobs.others(self._look(), self.kube.name)

    def logs(self, request: LogRequest) -> Iterator[LogPart]:
        return apart(self._log(request))

    def log_alone(self, job: str) -> Iterator[LogPart]:
        """A job's log, followed, without what `logs` asks the API: a part without lines comes every moment."""
        return super().logs(LogRequest(job))

    def stop(self, job: str, *, now: bool) -> None:
        """Ask the supervisor; what has none, or one that does not answer, is deleted and recorded as cancelled."""
        super().stop(job, now=now)
        record = self._record(job)
        deadline = time.monotonic() + _NOW_SECONDS
        while now and record.state == JobState.RUNNING and time.monotonic() < deadline:
            time.sleep(_POLL)
            record = self._record(job)
        if record.state.is_final or (record.state == JobState.RUNNING and not now):
            return
        self.api.delete(self.kube.job_kind, job)
        reason = "stopped before it started" if record.started is None else "stopped at once"
        self._record_end(job, Over(JobState.CANCELLED, reason, by=endings.SOMEBODY))

    def leftovers(self, job: str) -> dict[str, str]:
        """The training operator ends the pods of a finished job; those that it leaves are deleted here."""
        deadline, told = time.monotonic() + _LEFT_SECONDS, False
        while left := [pod for pod in self.api.list("Pod", {pods.JOB: job}) if reasons.is_alive(pod)]:
            jobs.end_overdue(self.api, left)
            if time.monotonic() > deadline:
                return {reasons.machine(pod) or "no machine": f"pod {pod['metadata']['name']}" for pod in left}
            if not told and time.monotonic() > deadline - _LEFT_SECONDS / 2:
                told = True
                for pod in left:
                    self.api.delete("Pod", str(pod["metadata"]["name"]))
            time.sleep(_POLL)
        return {}

    def forget(self, job: str) -> None:
        """Leave nothing of a job, which may still run: neither a pod nor its directory. KubeError, Exit 1."""
        start.remove(self.api, self.kube, job)
        removed = self._head.run(f"rm -rf {shlex.quote(self._folder_of(job))}")
        if not removed.ok:
            raise Exit(f"{self.host}: {removed.why}", code=1)

    @functools.cached_property
    def _of_jobs(self) -> KubeCluster:
        """The cluster with the very image that a job gets that starts now. Exit 2 if there is none."""
        return replace(self.kube, image=job_image(self.kube))

    def _ended(self) -> list[str]:
        """The jobs that are over by their records."""
        return [job.id for job in super().jobs() if job.state.is_final]

    def _never_beside(self, wanted: int) -> tuple[str, ...]:
        """The jobs beside which a new one of so many pods may not have machines: see waiting.py."""
        if that_wait := jobs.that_wait(self._look(), self._ended()):
            return waiting.never_beside(wanted, self._machines(), that_wait)
        return ()

    def _machines(self) -> int:
        """How many machines take pods now, of those that the cluster has for jobs; all of these, if the operator may
        not list Kubernetes' nodes."""
        try:
            return min(self.kube.workers, sum(nodes.is_ready(node) for node in self.api.list("Node")))
        except KubeError as error:
            if error.code != 403:
                raise
            return self.kube.workers

    def _look(self) -> Seen:
        return jobs.look(self.api, self.kube)

    def _now(self, record: JobRecord, seen: Seen) -> JobRecord:
        found = jobs.merged(record, seen)
        return self._record_end(record.id, found) if isinstance(found, Over) else found

    def _looked_at(self, job: str) -> JobRecord:
        """A job as its record and the API say. Unreachable if one of them cannot be read now."""
        try:
            with lost_connections():
                seen = self._look()
                return self._now(self._record(job), seen)
        except Exit as error:
            raise Unreachable(str(error.message)) from None

    def _record(self, job: str) -> JobRecord:
        """A job as its record says."""
        found = next((record for record in super().jobs() if record.id == job), None)
        if found is None:
            raise Exit(f"{self.host}: {job} has no record any more", code=1)
        return found

    def _record_end(self, job: str, over: Over) -> JobRecord:
        """Record how a job has ended; returns its record, which says otherwise if it was over already."""
        record = self._head.ask("kube-over", self._folder_of(job), over.state, over.reason, str(over.code), over.by)
        try:
            return JobRecord.from_record(record)
        except (ValueError, TypeError, AttributeError) as error:
            raise Exit(f"{self.host}: {job}: its record cannot be read: {error}", code=1) from None

    def _log(self, request: LogRequest) -> Generator[LogPart, None, None]:
        """The log's parts; before the first line of a job that is followed, why it waits."""
        said, looked, begun = "", 0.0, False
        with closing(log_parts(self._head, request)) as parts:
            for part in parts:
                yield part
                begun = begun or bool(part.lines)
                every = _LOOK_BEGUN if begun else _LOOK
                if part.job or not request.follow or time.monotonic() - looked < every:
                    continue
                looked = time.monotonic()
                record = self._looked_at(request.job)
                if record.state == JobState.PENDING and record.reason != said:
                    said = record.reason
                    yield LogPart((LogLine("kubernetes", "-", said),))
