"""A backend without machines, whose jobs are objects in this process: all that a verb needs of a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fabfile.backends.base import (
    CannotStart,
    Ended,
    File,
    JobFiles,
    JobNode,
    JobRecord,
    JobState,
    LogLine,
    LogPart,
    LogRequest,
    OtherJob,
    SampleOptions,
    Unreachable,
)
from fabfile.backends.submission import Begun, Submission, Submitted
from fabfile.launchers.program import Program
from node.job import endings

NODES = ("node1", "node2", "node3")
CREATED = 1_000_000.0


@dataclass
class MemoryBackend:
    """Three nodes of one rank. A job that is submitted runs as soon as somebody follows it, and ends as `ends` says."""

    name: str = "memory"
    host: str = "here"
    mirror: str = ""
    ends: tuple[JobState, int, str] = (JobState.SUCCEEDED, 0, "")
    """State, exit code and reason."""
    lines: tuple[str, ...] = ("step 1/2 loss 2.0", "step 2/2 loss 1.0")
    lost_at: int = -1
    """The line before which the connection is lost, once."""
    on: Callable[[str], None] = lambda method: None
    """Called with the name of each method that a verb calls while it works on a job."""
    left: dict[str, str] = field(default_factory=dict)
    content: dict[str, bytes] = field(default_factory=dict)
    """What each job's folder has."""
    table: list[JobRecord] = field(default_factory=list)
    others: list[OtherJob] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    programs: dict[str, Program] = field(default_factory=dict)
    bucket: dict[str, str] = field(default_factory=dict)
    """job.toml of the jobs that the mirror alone knows."""
    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What node.run_data reads of each job's folder."""
    orders: list[dict[str, Any]] = field(default_factory=list)
    """What managers have asked for; a job then is on other nodes at once."""
    holder: str = ""
    """Who else manages the jobs."""
    is_open: bool = False
    elastic: bool = False
    """Whether the job that was submitted last is so."""
    restarts: int = 0
    rank_memory: int = 0
    asked: list[Submission] = field(default_factory=list)
    """What was submitted."""

    def __enter__(self) -> MemoryBackend:
        self.is_open = True
        return self

    def __exit__(self, *error: object) -> None:
        self.is_open = False

    def reach(self) -> None: ...

    def nodes(self) -> tuple[JobNode, ...]:
        return tuple(JobNode(name, 1, 1.0, self.rank_memory) for name in NODES)

    def plan(self, submission: Submission) -> str:
        return f"would run {submission.name} on {submission.nodes} nodes"

    def prepare(self, submission: Submission) -> None:
        self.on("prepare")
        if any(not job.state.is_final for job in self.table) and not submission.queue:
            raise CannotStart("node1: busy with another")

    def submit(self, submission: Submission) -> Submitted:
        self.on("submit")
        begun = submission.begun
        id_ = begun.id if begun else f"{submission.name}-{len(self.table) + 1}"
        self.table = [job for job in self.table if job.id != id_]
        nodes = NODES[: submission.nodes]
        self.table.append(
            JobRecord(id=id_, state=JobState.RUNNING, nodes=nodes, created=CREATED, started=CREATED, price_per_hour=3.0)
        )
        self.texts[id_] = submission.text
        self.elastic = submission.elastic
        self.asked.append(submission)
        if submission.program:
            self.programs[id_] = submission.program
            self.table[-1] = replace(self.table[-1], program=submission.program.shell)
        return Submitted(id_)

    def jobs(self) -> list[JobRecord]:
        assert self.is_open, "a verb asks inside of the backend's `with` block"
        return list(self.table)

    def other_jobs(self) -> list[OtherJob]:
        return list(self.others)

    def begun(self, job: str) -> Begun:
        nodes, program = len(self._job(job).nodes), self.programs.get(job)
        return Begun(job, self.texts[job], nodes, program=program, elastic=self.elastic)

    def run_data(self, jobs: Sequence[str]) -> list[dict[str, Any]]:
        return [self.data[job] for job in jobs]

    def ready_records(self) -> dict[str, Any]:
        return {"node1": {"profile": "native"}, "node2": Unreachable("not known now"), "node3": None}

    def run_program(self, module: str, *words: str) -> str:
        return f"{module} {' '.join(words)}"

    def mirrored(self, url: str) -> list[str]:
        return list(self.bucket)

    def mirrored_job(self, url: str) -> str:
        return self.bucket[url.rpartition("/")[2]]

    def logs(self, request: LogRequest) -> Iterator[LogPart]:
        for number, text in list(enumerate(self.lines))[request.cursor :]:
            if number == self.lost_at:
                self.lost_at = -1
                raise Unreachable("the line is dead")
            if request.rank in ("", "0"):
                yield LogPart((LogLine("node1", "0", text),), number + 1)
            self.on("logs")
        if request.follow and not self._job(request.job).state.is_final:
            self.end(request.job, *self.ends)
        yield LogPart(job=self._job(request.job))

    def stop(self, job: str, *, now: bool) -> None:
        self.end(job, JobState.CANCELLED, 1, "stopped at once" if now else "stopped", endings.SOMEBODY)

    def manage(self, job: str, order: Mapping[str, Any]) -> dict[str, Any]:
        self.orders.append(dict(order))
        if self.holder:
            return {"holder": self.holder, "until": CREATED * 1e6}
        if order["without"] is not None:
            nodes = tuple(name for name in NODES if name not in order["without"])
            again = replace(self._job(job), nodes=nodes, attempt=self._job(job).attempt + 1)
            self.table = [again if each.id == job else each for each in self.table]
        return {"code": "/code", "resizing": False, "decisions": list(order["decisions"])}

    def leftovers(self, job: str) -> dict[str, str]:
        return self.left

    def files(self, job: str) -> Iterator[tuple[str, File | None]]:
        yield from ((name, File(len(content), 0)) for name, content in self.content.items())

    def fetch(
        self, job: str, names: Sequence[str], into: Path, limit: int, progress: Callable[[int], None]
    ) -> dict[str, int]:
        for name in names:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            (into / name).write_bytes(self.content[name])
            progress(len(self.content[name]))
        return {name: len(self.content[name]) for name in names}

    def on_other_nodes(self, job: JobRecord) -> Mapping[str, JobFiles]:
        return {}

    def export_weights(self, job: str) -> str:
        self.content = {**self.content, "weights/model.safetensors": b"w" * 3000, "weights/config.json": b"{}"}
        return "weights"

    def sample(self, job: str, options: SampleOptions) -> Iterator[bytes | Ended]:
        yield from (f"{options.prompt}{number} ".encode() for number in range(options.tokens))
        yield Ended(0 if options.seed else 3, "" if options.seed else "no model\n")

    def end(self, job: str, state: JobState, code: int, reason: str, by: str = "") -> None:
        """Let a job end."""
        ended = replace(self._job(job), state=state, exit_code=code, reason=reason, ended=CREATED + 3600, ended_by=by)
        self.table = [ended if each.id == job else each for each in self.table]

    def _job(self, job: str) -> JobRecord:
        return next(each for each in self.table if each.id == job)
