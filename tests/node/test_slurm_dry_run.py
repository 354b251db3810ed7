"""What a dry run shows of a job on Slurm is what the head then submits."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_cluster import cluster

from fabfile.backends.slurm import start
from fabfile.backends.submission import Submission
from fabfile.job_file import resolve
from fabfile.launchers import sbatch
from fabfile.remote.deploy import package
from infra.inventory import Queue, SshCluster
from node.job import submit
from node.slurm import queue

QUEUE = Queue(name="queue1", nodes=2, node_prefix="queue1-dy-node", slots=8, gpus=8)
ANSWERS = {
    "%N|%T|%P": "queue1-dy-node-1|idle~|queue1*\nqueue1-dy-node-2|idle~|queue1*\n",
    "%P|%L|%l": "queue1*|n/a|{limit}\n",
    "%P|%l": "queue1*|{limit}\n",
}

Submit = Callable[[SshCluster, Submission], str]
"""Submits a job to a cluster as `fab train` does, and returns the script that sbatch was given."""


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Submit:
    def head(there: SshCluster) -> Any:
        def ask(command: str, stdin: object) -> Any:
            assert command == "create"
            monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(stdin) + "\n"))
            capsys.readouterr()
            assert submit.main([]) == 0
            return json.loads(capsys.readouterr().out)

        return SimpleNamespace(cluster=there, folder="/unused", ask=ask)

    def submit_(there: SshCluster, asked: Submission) -> str:
        code = f"{start.code_folder(there)}/{package().hash}"  # where `prepare` has put it
        job = start.create(head(there), asked, [], code).id
        script = (tmp_path / "runs" / job / sbatch.SCRIPT).read_text()
        return script.replace(job, f"{asked.name}-N")

    return submit_


def played(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Slurm, whose partition has two free nodes and this limit of time."""

    def ask(argv: list[str], **_: object) -> str:
        if argv[0] == "sinfo":
            return ANSWERS[argv[-1].removeprefix("--format=")].format(limit=limit)
        return {"squeue": "", "sbatch": "7\n"}[argv[0]]

    monkeypatch.setattr(queue, "ask", ask)


def shown(there: SshCluster, asked: Submission) -> tuple[str, str]:
    """(the script, all that a dry run shows)"""
    text = start.shown(there, asked)
    return text.partition("\n")[2].partition("\n\n")[0] + "\n", text


def asked(shared: Path, **changes: Any) -> Submission:
    return Submission(job=resolve("smoke", [f"data.path={shared}/set"], 16), **{"nodes": 2} | changes)


@pytest.mark.parametrize("changes", [{}, {"nodes": 1}, {"restarts": 2}, {"time_limit": 5400.0}, {"queue": True}])
@pytest.mark.parametrize("place", [{}, {"queue": QUEUE}])
def test_a_dry_run_shows_the_script_that_is_submitted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    submitted: Submit,
    changes: dict[str, Any],
    place: dict[str, Any],
) -> None:
    there = replace(cluster(2, slots=4), launcher="slurm", shared_dir=str(tmp_path), **place)
    played(monkeypatch, "1-00:00:00")
    job = asked(tmp_path, **changes)
    assert submitted(there, job) == shown(there, job)[0]


def test_a_dry_run_says_how_a_short_limit_of_the_partition_changes_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submitted: Submit
) -> None:
    there = replace(cluster(2), launcher="slurm", shared_dir=str(tmp_path))
    for limit, signal in (("8:00", "@120"), ("7:56", "@119"), ("4:00", "@60")):
        played(monkeypatch, limit)
        script, text = shown(there, asked(tmp_path))
        assert submitted(there, asked(tmp_path)) == script.replace("B:USR1@120", f"B:USR1{signal}"), limit
        said = "under\n# 8 minutes, a job without a --time-limit is submitted with a --signal of a quarter of it."
        assert said in text
    assert "8 minutes" not in shown(there, asked(tmp_path, time_limit=240.0))[1], "there is no such line then"
