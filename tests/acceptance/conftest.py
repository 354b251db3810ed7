"""Fixtures of the acceptance tests: real machines, real verbs, real faults."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.register_assert_rewrite("jobs_on_kubernetes", "jobs_on_nodes", "jobs_on_slurm", "managed_jobs", "on_host")
pytest.register_assert_rewrite("project", "several_jobs", "user_programs")

import jobs_on_nodes  # noqa: E402
from on_host import engines, why_not  # noqa: E402
from project import Project  # noqa: E402

_numbers = itertools.count(int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) * 40)


@contextmanager
def projects(parent: Path) -> Iterator[Callable[..., Project]]:
    """A function that makes projects below `parent`; each is cleaned at the end, and must leave nothing."""
    made: list[Project] = []

    def make(engine: str = "embedded") -> Project:
        if reason := why_not(engine):
            pytest.skip(reason)
        number = next(_numbers)
        stack = f"t{os.getpid() % 10000}-{number}"
        directory = parent / stack
        # By process: two test runs on one machine must not want the same network.
        cidr = f"10.{64 + os.getpid() % 190}.{number}.0/24"
        made.append(Project(directory / "trainyard", stack, engine, cidr))
        return made[-1]

    try:
        yield make
    finally:
        for project in made:
            project.clean()


@pytest.fixture
def make_project(tmp_path: Path) -> Iterator[Callable[..., Project]]:
    """Makes projects for one test."""
    with projects(tmp_path) as make:
        yield make


@pytest.fixture(scope="module")
def make_shared_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Project]]:
    """Makes projects that the tests of a file share."""
    with projects(tmp_path_factory.mktemp("shared")) as make:
        yield make


@pytest.fixture
def project(make_project: Callable[..., Project]) -> Project:
    """One project on the embedded engine: for what does not depend on the engine."""
    return make_project()


@pytest.fixture(params=engines())
def any_project(request: pytest.FixtureRequest, make_project: Callable[..., Project]) -> Project:
    """One project on each engine."""
    return make_project(request.param)


@pytest.fixture(scope="module")
def cluster(make_shared_project: Callable[..., Project]) -> Iterator[Project]:
    """Three nodes, ready, with the tokens of the small job: the tests of a file share them."""
    with jobs_on_nodes.cluster_of_three(make_shared_project()) as project:
        yield project


@pytest.fixture
def start(cluster: Project, tmp_path: Path) -> Iterator[jobs_on_nodes.Start]:
    """Starts jobs, each followed; what a test leaves running is ended."""
    with jobs_on_nodes.starting(cluster, tmp_path) as begin:
        yield begin
