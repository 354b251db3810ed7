"""Jobs on the nodes of a local cluster: a small one to start, what is seen of it from outside, and its processes."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from on_host import Traces, members
from polling import until
from project import Project

from infra.clouds.local import nodes, orphans

JOB = """
[data]
path = "data"
[model]
n_layer = 1
n_head = 2
n_embd = 16
block_size = 16
[train]
steps = 12
global_batch_tokens = 384
micro_batch = 8
precision = "fp32"
timeout = 15
[checkpoint]
every = 5
[run]
name = "job"
"""
ENDLESS = "train.steps=1000000"
LONG = ["model.dropout=0", "train.decay_steps=5000", "checkpoint.every=500"]
"""For jobs of which as many steps are done again undisturbed as they did: equal but for the last digits."""
# A folder as nanoGPT writes it: tokens and nothing else.
DATA = (
    "import array, os, random; os.makedirs('data', exist_ok=True); r = random.Random(1)\n"
    "for name, count in (('train', 20000), ('val', 2000)):\n"
    "    open(f'data/{name}.bin', 'wb').write(array.array('H', [r.randrange(50) for _ in range(count)]).tobytes())"
)
GO_ON = 60.0
"""Seconds from the loss of a rank to the next step; without load it is 3 to 6 (tests/bench/bench_elastic.py)."""
GONE_SECONDS = 10.0
"""After any fault: how long until no process of the job is left on a node that can be reached."""


def folder(project: Project, job: str, node: str) -> Path:
    """A job's run directory on a node, as this machine sees it."""
    return nodes.machine(project.stack, node).root / "home/trainyard/runs" / job


def listed(project: Project) -> str:
    return project.fab("jobs", "--json").stdout


@dataclass
class Job:
    """A job under way, followed by a `fab train`."""

    project: Project
    id: str
    fab: subprocess.Popen[str]
    log: Path

    def text(self) -> str:
        return self.log.read_text()

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = next(one for one in json.loads(listed(self.project)) if one["id"] == self.id)
        return found

    def reaches(self, step: int, seconds: float = 90) -> None:
        def there() -> bool:
            assert self.fab.poll() is None or f"step {step}/" in self.text(), self.text()
            return f"step {step}/" in self.text()

        until(there, seconds, f"step {step} of {self.id}")

    def says(self, what: str) -> bool:
        return what in self.text()

    def times(self) -> dict[int, tuple[float, int, float]]:
        """By step its Unix time, the number of ranks and the loss; every step is there once."""
        lines = (folder(self.project, self.id, "node1") / "metrics.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        assert [line["step"] for line in found] == list(range(1, len(found) + 1))
        return {line["step"]: (line["time"], len(line["rank_seconds"]), line["loss"]) for line in found}

    def has_steps(self, count: int) -> bool:
        return len(self.times()) >= count

    def ends(self, seconds: float = 60) -> int:
        return self.fab.wait(seconds)


def parts(project: Project, job: str, *names: str) -> list[int]:
    """Processes of a job on these nodes, as this machine sees them."""
    found = []
    for node in names or ("node1", "node2", "node3"):
        for pid in members(project.stack, node):
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue  # it ended while we looked
            if f"TRAINYARD_JOB={job}".encode() in environment or f"trainyard-job-{job}".encode() in command:
                found.append(pid)
    return found


def process(project: Project, node: str, words: str) -> int:
    """The one process of a node whose command line begins so."""
    found = processes(project, node, words)
    assert len(found) == 1, f"{words} on {node}: {found}"
    return found[0]


def processes(project: Project, node: str, words: str) -> list[int]:
    """The processes of a node whose command line begins so."""
    found = []
    for pid in members(project.stack, node):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it ended while we looked
        if re.match(words, command):
            found.append(pid)
    return found


def ran_side_by_side(states: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some of these jobs, by their records, ran at once, and none of those on nodes of another one."""
    at_once = [
        (one, other)
        for one, other in itertools.combinations(states, 2)
        if one["started"] < other["ended"] and other["started"] < one["ended"]
    ]
    return bool(at_once) and all(one["nodes"] != other["nodes"] for one, other in at_once)


RANK = r"/opt/trainyard/venv/bin/python -u -m training\.train "


@contextmanager
def cluster_of_three(project: Project) -> Iterator[Project]:
    """Up and ready, with the tokens of the small job; nothing is left of it afterwards."""
    project.configure(nodes=3)
    project.fab("up", "--yes", timeout=600)
    project.fab("wait")
    (project.root / "job.toml").write_text(JOB)
    missing = project.fab("train", "job.toml", code=2)
    assert re.search(r"node\d: data\.path = data", missing.stderr) and json.loads(listed(project)) == []
    project.fab("run", f'cd && python3 -c "{DATA}"')
    yield project
    project.fab("destroy", "--yes")
    Traces(project).check_nothing_is_left()


@contextmanager
def another_stack(project: Project) -> Iterator[str]:
    """Another stack of one node, ready, whose network has no way to the first one's; nothing is left of it."""
    name, octets = f"{project.stack}b", project.cidr.split(".")
    values = {"cidr": ".".join([*octets[:2], str(int(octets[2]) + 20), *octets[3:]]), "nodes": 1}
    lines = "".join(f'  trainyard:{key}: "{value}"\n' for key, value in values.items())
    (project.root / "stacks" / f"Pulumi.{name}.yaml").write_text(f"config:\n{lines}")
    try:
        project.fab("up", "--yes", "--stack", name, timeout=600)
        project.fab("wait", "--stack", name)
        yield name
        project.fab("destroy", "--yes", "--stack", name)
        assert orphans.find(name) == []
    finally:
        if orphans.find(name):
            orphans.sweep(name, ())


Start = Callable[..., Job]


@contextmanager
def starting(cluster: Project, logs: Path) -> Iterator[Start]:
    """A function that starts jobs, each followed; what a test leaves running is ended."""
    started: list[Job] = []

    def one(*argv: str, step: int = 3, file: str = "job.toml") -> Job:
        log = logs / f"{len(started)}.log"
        fab = cluster.start("train", file, *argv, log=log)
        until(lambda: re.match(r"\S+-\d+:", log.read_text()) or fab.poll() is not None, 60, "the job has a number")
        assert re.match(r"\S+-\d+:", log.read_text()), log.read_text()
        job = Job(cluster, log.read_text().partition(":")[0], fab, log)
        started.append(job)
        if step:
            job.reaches(step)
        return job

    yield one
    for job in started:
        if job.state()["state"] in ("RUNNING", "PENDING"):
            cluster.fab("stop", job.id, "--now")
        job.fab.kill()
        job.fab.wait()
