"""A cluster of local nodes for a bench: ready when the block begins, and gone after it, however it ends."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "acceptance"), str(ROOT / "tests" / "support")]

from jobs_on_nodes import Start, starting  # noqa: E402
from project import Project  # noqa: E402


@contextmanager
def ready(nodes: int, cidr: str, **keys: object) -> Iterator[tuple[Project, Path]]:
    """The cluster, made by the embedded engine with these keys of a stack, and a folder for the bench's own files.
    Needs root."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        project = Project(Path(folder) / "trainyard", f"b{os.getpid() % 10000}", "embedded", cidr)
        try:
            project.configure(nodes=nodes, **keys)
            project.fab("up", "--yes", timeout=900)
            project.fab("wait")
            yield project, Path(folder)
        finally:
            project.fab("destroy", "--yes", code=None)
            project.clean()


def within_goals(
    project: Project,
    folder: Path,
    rounds: int,
    measures: Mapping[str, Callable[[Project, Start], float]],
    goals: Mapping[str, float],
) -> bool:
    """Print the seconds of each measure, round by round, and their medians; whether none is above its goal."""
    print(f"load {os.getloadavg()[0]:.1f}", flush=True)
    found: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds):
        logs = folder / str(number)
        logs.mkdir()
        with starting(project, logs) as start:
            for name, measure in measures.items():
                found[name].append(measure(project, start))
                print(f"{name:8} {found[name][-1]:6.1f} s", flush=True)
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    for name, median in medians.items():
        print(f"{name:8} median {median:.1f} s (goal {goals[name]:g} s)")
    return all(median <= goals[name] for name, median in medians.items())
