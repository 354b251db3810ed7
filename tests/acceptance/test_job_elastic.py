"""An elastic job on real machines: ranks and nodes are lost, the others go on at once, and they join again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs_on_nodes import ENDLESS, RANK, Job, folder, parts, process
from polling import until
from project import Project

pytestmark = pytest.mark.faults

LONG = ["model.dropout=0", "train.decay_steps=5000", "checkpoint.every=500"]
GO_ON, JOIN = 10.0, 15.0
"""Seconds from the loss of a rank to the next step, and from there to the step with the rank that has joined."""


def times(job: Job) -> dict[int, tuple[float, int, float]]:
    """By step its Unix time, the number of ranks and the loss; every step is there once."""
    lines = (folder(job.project, job.id, "node1") / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [line["step"] for line in found] == list(range(1, len(found) + 1))
    return {line["step"]: (line["time"], len(line["rank_seconds"]), line["loss"]) for line in found}


def test_what_cannot_be_elastic_is_refused(cluster: Project) -> None:
    for argv, line in (
        (["train.optimizer=muon"], "train.optimizer = muon; allowed in an elastic job: adamw"),
        (["train.parallel=fsdp"], "train.parallel = fsdp; allowed in an elastic job: auto or ddp"),
        (["--launcher", "mpirun"], "--launcher mpirun: an elastic job has a launcher of its own"),
    ):
        done = cluster.fab("train", "job.toml", "--elastic", *argv, code=2)
        assert done.stderr.startswith(line), done.stderr


def test_ranks_are_lost_and_join_again(cluster: Project, start: Callable[..., Job]) -> None:
    job = start("--elastic", ENDLESS, *LONG, step=20)
    rank = process(cluster, "node1", RANK)
    assert os.getpriority(os.PRIO_PROCESS, rank) >= 0, "the priority of its supervisor is not the rank's"
    assert Path(f"/proc/{rank}/oom_score_adj").read_text().strip() == "0"
    for number, how in ((1, signal.SIGKILL), (0, signal.SIGKILL), (2, signal.SIGSTOP)):
        node = f"node{number + 1}"
        os.kill(process(cluster, node, RANK), how)
        until(lambda number=number, node=node: f"rank {number} on {node} has joined: 3 ranks" in job.text(), 60)
        since = len(times(job))
        until(lambda since=since: len(times(job)) > since + 5, 60, "steps of three ranks")
    assert "is in the checkpoint" in cluster.fab("stop", job.id).stdout
    assert job.state()["attempt"] == 1 and f"{job.id}: 3 ranks" in job.text() and "5 more may be lost" in job.text()
    assert parts(cluster, job.id) == []
    seen = times(job)
    gaps = [after[0] - before[0] for before, after in zip(seen.values(), list(seen.values())[1:], strict=False)]
    print(f"longest times between two steps: {sorted(gaps)[-8:]}")
    assert max(gaps) < GO_ON
    counts = [one[1] for one in seen.values()]
    assert set(counts) == {2, 3} and counts[-1] == 3 and job.text().count("2 ranks of 3 go on") == 3
    fixed = start(f"train.steps={len(seen)}", *LONG, step=0)
    assert fixed.ends(240) == 0
    undisturbed = times(fixed)
    assert [one[2] for one in seen.values()] == pytest.approx([one[2] for one in undisturbed.values()], rel=1e-4)
