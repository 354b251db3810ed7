"""Run jobs on nodes reached over SSH: node/job/ supervises them on the head, mpirun or torchrun starts the ranks."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit

from fabfile.backends.base import (
    NO_MIRROR,
    WEIGHTS,
    Ended,
    File,
    JobFiles,
    JobNode,
    JobRecord,
    LogPart,
    LogRequest,
    OtherJob,
    SampleOptions,
    Unreachable,
)
from fabfile.backends.job_answer import check_job_id, is_job_id
from fabfile.backends.ssh import files, start
from fabfile.backends.ssh.head import Head, log_parts, runs
from fabfile.backends.submission import Begun, Submission, Submitted
from fabfile.launchers import RUNTIME
from fabfile.launchers.program import from_record as program_of
from fabfile.output import say
from fabfile.remote import node_program
from fabfile.remote.command import Result
from fabfile.remote.deploy import deploy, trainer_command
from fabfile.remote.fleet import Connections, Fleet, apart
from fabfile.workdir import requirements, send
from infra.inventory import Node, SshCluster

_LOOK_SECONDS = 30  # limit for a node to end what is left of a job, and to report what is still there
_DATA_SECONDS = 60  # limit for a node to read the files that a report is made from
_READY = 'exec cat "$TRAINYARD_PREFIX/var/lib/trainyard/ready.json"'  # the prefix is empty on a node
_PROGRAM_SECONDS = 120.0
_WEIGHTS_SECONDS = 3600.0  # limit for the head to write a model in Hugging Face's layout: 140 GB for one of 70B
_WITH_FILES = ("metrics", "clusters", "checkpoints", "samples")  # what a report reads beside a job's checkpoints
_QUIET_SECONDS = 600.0  # without a token, after which sampling is given up; includes the loading of the model


class SshBackend:
    """The jobs of a cluster whose head is reached over SSH."""

    restarts = 0
    """Nobody makes a lost node again by itself: who is told of it chooses how to go on."""

    def __init__(self, cluster: SshCluster, timeout: float = 10) -> None:
        self.cluster = cluster
        self.name, self.host = cluster.name, cluster.head.name
        self.mirror = f"{cluster.data_url.rstrip('/')}/runs" if cluster.data_url else ""
        self._timeout = timeout
        self._opened: Connections | None = None
        self._reached: Head | None = None
        self._folder = ""  # with this checkout's programs, on the nodes; empty: not copied yet
        self._choice = start.Choice()  # the nodes among which the head chooses a new job's
        self._with_files_of: dict[str, list[Head]] = {}  # by job, the node beside the head that has its files
        self._taken: list[str] = []  # ids of other clusters' jobs in the bucket, which a new job must not get
        self._warned: set[str] = set()

    def __enter__(self) -> SshBackend:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._opened:
            self._opened.close()

    # Not cached_property: in Python 3.11 all instances share its lock, and Ctrl-C may leave it taken.
    @property
    def _fleet(self) -> Connections:
        self._opened = self._opened or Fleet(self.cluster, self._timeout)
        return self._opened

    @property
    def _head(self) -> Head:
        self._reached = self._reached or Head(self._fleet, self._folder)
        return self._reached

    def reach(self) -> None:
        self._fleet.connection(self.cluster.head)

    def nodes(self) -> tuple[JobNode, ...]:
        price = self.cluster.job_node_usd
        return tuple(JobNode.of(node, price) for node in self.cluster.nodes)

    def plan(self, submission: Submission) -> str:
        return start.shown(self.cluster, submission)

    def prepare(self, submission: Submission) -> None:
        nodes = start.candidates(self.cluster, submission)
        may_choose = start.may_choose(self.cluster, submission)
        sent = (submission.text, start.launch_of(self.cluster, submission).ranks)
        answers = deploy(self._fleet, nodes[:1] if may_choose else nodes, *sent)
        if may_choose:
            answers |= deploy(self._fleet, nodes[1:], *sent, needed=False)
            self._choice = start.choice(self.cluster, submission, answers)
            nodes = self._choice.nodes
        start.refuse(answers, free=0 if submission.queue else submission.nodes, prepare=submission.prepare)
        self._folder = answers[self.host].folder
        self._bring(submission, nodes)
        self._taken = [] if submission.begun else self.mirrored(submission.mirror)

    def _bring(self, submission: Submission, nodes: Sequence[Node]) -> None:
        """Bring a program's working directory and its extra packages to these nodes, or to the folder they share."""
        chosen = [self.cluster.head] if self.cluster.shared_dir else nodes
        if submission.snapshot is not None:
            send.send(self._fleet, chosen, submission.snapshot, send.store_of(self.cluster))
        if submission.program is not None and submission.program.requirements:
            folder = requirements.folder_of(self.cluster)
            text = submission.program.requirements
            own = submission.own_requirements
            requirements.ensure(self._fleet, chosen, text, folder, from_operator=own)

    def submit(self, submission: Submission) -> Submitted:
        return start.create(self._head, submission, self._taken, self._choice)

    def jobs(self) -> list[JobRecord]:
        answer = self._head.ask("jobs", runs(self.cluster))
        if not isinstance(answer, list):
            raise Exit(f"{self.host}: jobs: its answer is no list", code=1)
        records = []
        for record in answer:
            try:
                records.append(JobRecord.from_record(record))
            except (ValueError, TypeError, AttributeError) as error:
                self._warn(f"a job's record is left out: {error}")
        return records

    def _warn(self, text: str) -> None:
        """Say once that something of the head's answers was left out: verbs ask for the jobs again and again."""
        if text not in self._warned:
            self._warned.add(text)
            say(f"warning: {self.host}: {text}", file=sys.stderr)

    def other_jobs(self) -> list[OtherJob]:
        return []

    def begun(self, job: str) -> Begun:
        own = self._head.ask("job", runs(self.cluster), job)
        try:
            program = program_of(own["program"]) if own.get("program") else None
            known = {"program": program, "files_on": own["files_on"], "on": tuple(own["on"]), "elastic": own["elastic"]}
            return Begun(job, own["job"], int(own["nodes"]), **known)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Exit(f"{self.host}: job {job}: its record cannot be read: {error}", code=1) from None

    def mirrored(self, url: str) -> list[str]:
        if url in NO_MIRROR:
            return []
        try:
            listed = self.run_program("store", "list", url).splitlines()
            names = [line.partition("\t")[0] for line in listed]
            return [name for name in names if is_job_id(name)]
        except Exit as error:  # the trainer notices a taken name too, and then does not mirror the job
            why = str(error.message).removeprefix(f"{self.host}: ")
            say(f"warning: {self.host}: the mirror cannot be asked: {why}", file=sys.stderr)
            return []

    def mirrored_job(self, url: str) -> str:
        return self.run_program("store", "read", url, "job.toml")

    def run_program(self, module: str, *words: str) -> str:
        program = trainer_command(self._head.folder, f"training.{module}", *words)
        result = self._head.run(program, _PROGRAM_SECONDS)
        if not result.ok:
            raise Exit(f"{self.host}: {result.why}", code=1)
        return result.stdout

    def run_data(self, jobs: Sequence[str]) -> list[dict[str, Any]]:
        argv = ("run-data", runs(self.cluster), *jobs)
        result = node_program.run(self._fleet, *argv, nodes=[self.cluster.head], timeout=_DATA_SECONDS)[self.host]
        if not result.ok:
            raise Exit(result.reason or f"{self.host}: {result.why}", code=1)
        answer = json.loads(result.stdout)
        if "unknown" in answer:
            names = ", ".join(answer["there"][-20:]) or "none"
            raise Exit(f"no run {answer['unknown']!r} on {self.host}; there are: {names}", code=2)
        found: list[dict[str, Any]] = answer["runs"]
        for run in found:
            try:
                check_job_id(run["id"])
            except ValueError as error:
                raise Exit(f"{self.host}: its answer cannot be read: {error}", code=1) from None
        return [self._with_files(run) for run in found]

    def _with_files(self, run: dict[str, Any]) -> dict[str, Any]:
        """A run's data, with the metrics and checkpoints of a job that has them on another node than the head. If that
        does not answer, they are left out, with a warning."""
        job, name = str(run["id"]), str(run["state"].get("files_on", ""))
        if not name:
            return run
        try:
            argv, node = ("run-data", runs(self.cluster), job), self._node(job, name)
            result = node_program.run(self._fleet, *argv, nodes=[node], timeout=_DATA_SECONDS)[name]
            if not result.ok:
                raise Exit(result.reason or f"{name}: {result.why}", code=1)
        except Exit as error:
            say(f"warning: {job}: its metrics are not known now: {error.message}", file=sys.stderr)
            return run
        there = (json.loads(result.stdout).get("runs") or [{}])[0]
        if there.get("said"):  # a program's last lines are on the head, its heartbeats where its files are
            run["said"] |= {"step": there["said"]["step"]}
        return run | {key: there[key] for key in _WITH_FILES if key in there}

    def ready_records(self) -> dict[str, Any]:
        return {name: _record(result) for name, result in self._fleet.run(_READY, timeout=_DATA_SECONDS).items()}

    def logs(self, request: LogRequest) -> Iterator[LogPart]:
        return apart(log_parts(self._head, request))

    def stop(self, job: str, *, now: bool) -> None:
        """Write the request on the head, where the job's supervisor reads it, even if the operator disconnects."""
        path = shlex.quote(f"{self._folder_of(job)}/stop.json")
        text = shlex.quote(json.dumps({"how": "now" if now else "stop"}))
        result = self._head.run(f"cd && printf %s {text} > {path}.new && mv {path}.new {path}")
        if not result.ok:
            raise Exit(f"{self.host}: {result.why}", code=1)

    def manage(self, job: str, order: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._head.ask("manage", self._folder_of(job), stdin=dict(order))
        return answer

    def leftovers(self, job: str) -> dict[str, str]:
        found = {}
        for name, result in node_program.run(self._fleet, "sweep", job, timeout=_LOOK_SECONDS).items():
            there = json.loads(result.stdout)["alive"] if result.ok else [f"not known: {result.why}"]
            if there:
                found[name] = "; ".join(there)
        return found

    def files(self, job: str) -> Iterator[tuple[str, File | None]]:
        return files.FilesOfNode(self._heads(job), runs(self.cluster)).files(job)

    def fetch(
        self, job: str, names: Sequence[str], into: Path, limit: int, progress: Callable[[int], None]
    ) -> dict[str, int]:
        return files.FilesOfNode(self._heads(job), runs(self.cluster)).fetch(job, names, into, limit, progress)

    def on_other_nodes(self, job: JobRecord) -> Mapping[str, JobFiles]:
        own = {self.host, job.files_on}
        nodes = [node for node in self.cluster.nodes if node.name in job.nodes and node.name not in own]
        if self.cluster.shared_dir or not nodes:
            return {}
        there = deploy(self._fleet, nodes)
        heads = {node.name: Head(self._fleet, there[node.name].folder, node) for node in nodes}
        return {name: files.FilesOfNode([head], runs(self.cluster)) for name, head in heads.items()}

    def export_weights(self, job: str) -> str:
        run = shlex.quote(self._folder_of(job))
        new, final = f"{run}/{WEIGHTS}.new", f"{run}/{WEIGHTS}"
        head = self._heads(job)[0]
        module = "training.models.hugging_face"
        program = trainer_command(head.folder, module, self._folder_of(job), f"{self._folder_of(job)}/{WEIGHTS}.new")
        command = f"rm -rf {new} && {program} && rm -rf {final} && mv {new} {final}"
        result = head.run(command, _WEIGHTS_SECONDS)
        if not result.ok:
            raise Exit(f"{head.node.name}: {result.why}", code=1)
        return WEIGHTS

    def sample(self, job: str, options: SampleOptions) -> Iterator[bytes | Ended]:
        words = [f"--{name.replace('_', '-')}={value}" for name, value in vars(options).items()]
        head = self._heads(job)[0]
        program = trainer_command(head.folder, "training.sample", self._folder_of(job), *words)
        threads = head.node.cores_per_slot
        environment = f"OMP_NUM_THREADS={threads} PYTHONIOENCODING=utf-8"
        command = f"set -a; . {RUNTIME}; {environment}; set +a; exec {program}"
        for part in head.output(command, quiet=_QUIET_SECONDS):
            if not isinstance(part, Result):
                yield part
            elif part.reason:
                raise Exit(part.reason, code=1)
            else:
                yield Ended(part.exited, part.stderr)

    def _heads(self, job: str) -> list[Head]:
        """The nodes that have files of a job: the one with its checkpoints and metrics first, and the head, which has
        its log."""
        if self.cluster.shared_dir or len(self.cluster.nodes) == 1:
            return [self._head]
        if job not in self._with_files_of:
            name = self._head.ask("job", runs(self.cluster), job)["files_on"]
            self._with_files_of[job] = [Head(self._fleet, "", self._node(job, name))] if name else []
        return [*self._with_files_of[job], self._head]

    def _node(self, job: str, name: str) -> Node:
        """The node that has a job's files; Exit 1 if the cluster does not have it any more."""
        found = next((node for node in self.cluster.nodes if node.name == name), None)
        if found is None:
            raise Exit(f"{job}: its files were on {name}, which {self.name} does not have now", code=1)
        return found

    def _folder_of(self, job: str) -> str:
        return f"{runs(self.cluster)}/{job}"


def _record(result: Result) -> Any:
    """The JSON of a ready.json, or why there is none."""
    if not result.ok:
        return Unreachable(f"not known now: {result.reason or result.why}")
    try:
        return json.loads(result.stdout)
    except ValueError:
        return Unreachable("its ready.json is no JSON")
