"""Check and resolve a job file with the trainer's own code, which needs only the standard library for this."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.exceptions import Exit

from fabfile.command_line import meant
from fabfile.stacks.pulumi_cli import ROOT

if TYPE_CHECKING:
    from fabfile.backends.base import JobNode

_JOBS = ROOT / "training" / "jobs"
# In a process of its own: fabfile does not import the trainer, so an error there cannot break fab.
_RESOLVE = """
import sys
from dataclasses import replace
from pathlib import Path
from training import job as jobs
from training.parallel import sums
ranks, memory, on_gpus = map(int, sys.argv[2].split(","))
try:
    job = jobs.load(Path(sys.argv[1]), sys.argv[5:])
    if sys.argv[3] and not job.checkpoint.mirror:
        job = replace(job, checkpoint=replace(job.checkpoint, mirror=sys.argv[3]))
    jobs.check_ranks(job, ranks)
    if sys.argv[4]:
        jobs.check_elastic(job)
    line = sums.expected(job.model, job.train, ranks=ranks, memory=memory, on_gpu=bool(on_gpus))
except jobs.JobError as error:
    sys.exit(f"{error}")
print(line)
print(job.to_toml())
"""


@dataclass(frozen=True)
class Resolved:
    """A valid job, and those of its settings that the verbs and launchers read."""

    text: str  # the whole job file, with defaults, as the nodes get it
    name: str
    timeout: int
    threads: int  # of each rank; 0: one for each of its cores
    mirror: str  # the bucket's folder with a folder for each mirrored run; `none` or empty: no mirror
    memory: str = ""  # the sum of what it needs and what the ranks have; empty: not known


@dataclass(frozen=True)
class Ranks:
    """The ranks of a job, as the inventory has them."""

    count: int
    memory: int = 0  # bytes of the one that has the fewest; 0: unknown
    on_gpus: bool = False

    @classmethod
    def on(cls, nodes: Sequence[JobNode]) -> Ranks:
        """Those on some machines."""
        on_gpus = all(node.on_gpus for node in nodes)
        return cls(sum(node.ranks for node in nodes), min(node.rank_memory for node in nodes), on_gpus)


def find(given: str) -> Path:
    """The file that is named, or the one of that name in training/jobs; Exit 2 for a name that neither has."""
    path = Path(given).expanduser()
    if path.is_file() or "/" in given:
        return path
    published = _JOBS / f"{path.name.removesuffix('.toml')}.toml"
    if published.is_file():
        return published
    near = meant(given, [file.stem for file in _JOBS.glob("*.toml")])
    raise Exit(f"there is no job {given!r}{near} ({known_jobs()}; or give a file)", code=2)


def resolve(
    given: str, overrides: Sequence[str], ranks: int | Ranks, mirror: str = "", *, elastic: bool = False
) -> Resolved:
    """The job of a file, or of training/jobs by its name; Exit 2, with one line, if it is not valid, or cannot be
    `elastic`. `mirror` is where its checkpoints are copied, unless the job sets that itself."""
    path = find(given)
    there = ranks if isinstance(ranks, Ranks) else Ranks(ranks)
    facts = f"{there.count},{there.memory},{int(there.on_gpus)}"
    argv = [sys.executable, "-c", _RESOLVE, str(path.absolute()), facts, mirror, "1" * elastic, *overrides]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Exit(done.stderr.strip().splitlines()[-1], code=2)
    memory, _, text = done.stdout.partition("\n")
    job = tomllib.loads(text)
    # The launcher sets the run directory, on every node.
    if job["run"]["directory"]:
        raise Exit(f"run.directory = {job['run']['directory']}: fab gives every job its own: leave it out", code=2)
    train = job["train"]
    mirror = job["checkpoint"]["mirror"]
    return Resolved(text, job["run"]["name"], train["timeout"], train["threads"], mirror, memory)


def setting(text: str, section: str, key: str) -> str:
    """A text of a resolved job.toml, as a head or a bucket has it. Exit 1, with one line, if it is not there."""
    try:
        value = tomllib.loads(text)[section][key]
    except (ValueError, KeyError, TypeError, RecursionError):
        value = None
    if not isinstance(value, str):
        raise Exit(f"the job's job.toml is damaged: it has no {section}.{key}", code=1)
    return value


def known_jobs() -> str:
    """`the published ones are: demo, smoke`"""
    return f"the published ones are: {', '.join(sorted(path.stem for path in _JOBS.glob('*.toml')))}"
