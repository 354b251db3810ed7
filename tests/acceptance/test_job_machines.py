"""Jobs on machines that run out of memory, reboot themselves under it, or are gone and replaced by a manager."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import user_programs
from jobs_on_nodes import ENDLESS, GO_ON, GONE_SECONDS, Job, folder, parts, starting
from on_host import boots, cut_power
from polling import until
from project import Project

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]
# A busy machine may take long to load three ranks' libraries, also those that were just in a node's memory.
PATIENT = "train.timeout=120"


def test_a_node_that_runs_out_of_memory_is_named_with_what_it_has(cluster: Project, start: Callable[..., Job]) -> None:
    """805 million parameters of 4 bytes are more than its 2 GiB."""
    before = boots(cluster.stack)
    job = start("model.n_embd=8192", PATIENT, "--nodes", "1", step=0)
    assert job.ends(300) == 1, job.text()
    expected = "node1 ran out of its 2 GiB of memory: rank 0 was killed for it"
    assert job.state()["reason"] == expected
    assert expected in job.text(), job.text()
    assert parts(cluster, job.id) == [] and boots(cluster.stack) == before
    after = start(PATIENT, step=0)
    assert after.ends(300) == 0, after.text()


@pytest.mark.parametrize(
    "node", [pytest.param("node2", id="worker", marks=pytest.mark.soak), pytest.param("node1", id="head")]
)
def test_a_job_ends_when_its_node_reboots_and_the_next_one_runs(
    node: str, cluster: Project, start: Callable[..., Job]
) -> None:
    job = start(ENDLESS, PATIENT, step=0)
    job.reaches(3, 300)
    before = boots(cluster.stack)
    cluster.ssh(node, "sudo systemctl reboot", code=None)
    until(lambda: boots(cluster.stack).get(node, before[node]) != before[node], 60, f"{node} boots again")
    others = [name for name in before if name != node]
    until(lambda: parts(cluster, job.id, *others) == [], GONE_SECONDS + 20, "nothing of it is left on the others")
    cluster.fab("wait")
    until(lambda: job.state()["state"] in ("FAILED", "CANCELLED"), 30, "its state is known")
    if node != "node1":
        assert job.state()["state"] == "FAILED" and "node2" in job.state()["reason"], job.state()
    records = json.loads(cluster.fab("status", "--json").stdout)["nodes"]
    assert {one["state"] for one in records} == {"ready"} and [one["job"] for one in records if one["job"]] == []
    after = start(PATIENT, step=0)
    assert after.ends(300) == 0, after.text()


# A minute of steps on two idle cores: so it lasts until its node is replaced.
STEPS = 1000
LONG = [f"train.steps={STEPS}", "checkpoint.every=50", "train.eval_every=0", "train.precision=fp32"]


def metrics(project: Project, job: str) -> list[dict[str, Any]]:
    text = (folder(project, job, "node1") / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def manage(project: Project, log: Path, *argv: str) -> subprocess.Popen[str]:
    """A `fab train --managed` of its own, that writes into `log`."""
    return project.start("train", *argv, "--managed", "--yes", log=log)


@pytest.fixture(scope="module")
def expected(cluster: Project, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The last metrics of the same job, undisturbed."""
    cluster.fab("prepare", "smoke", timeout=300)
    with starting(cluster, tmp_path_factory.mktemp("undisturbed")) as start:
        job = start(*LONG, PATIENT, step=0, file="smoke")
        assert job.ends(600) == 0, job.text()
        return metrics(cluster, job.id)[-1]


@pytest.mark.soak
def test_a_managed_job_gets_its_machine_again_and_ends_as_if_nothing_had_been(
    expected: dict[str, Any], cluster: Project, tmp_path: Path
) -> None:
    """Its manager is killed as well, in between, and another one takes its place."""
    first, second = tmp_path / "first", tmp_path / "second"
    manager = manage(cluster, first, "smoke", *LONG, PATIENT)
    until(lambda: "step 100/" in first.read_text(), 300, lambda: f"step 100:\n{first.read_text()}")
    (job,) = re.findall(r"^(\S+-\d+): 3 ranks", first.read_text(), re.M)
    before = boots(cluster.stack)
    cut_power(cluster.stack, "node2")
    os.killpg(manager.pid, signal.SIGKILL)
    states = {one["id"]: one["state"] for one in json.loads(cluster.fab("jobs", "--json").stdout)}
    assert states[job] == "RUNNING", "it needs no manager"

    manager = manage(cluster, second, "--resume", job)
    assert manager.wait(600) == 0, second.read_text()
    said, log = second.read_text(), cluster.fab("logs", job).stdout
    assert "managed: node2 replaced, with code and data" in said and f"managed: {job} SUCCEEDED after 1 replac" in said
    assert boots(cluster.stack)["node2"] != before["node2"]
    assert {name: boots(cluster.stack)[name] for name in ("node1", "node3")} == {
        name: before[name] for name in ("node1", "node3")
    }, "the others are as they were"
    attempts = re.findall(r"attempt \d+: \d ranks on (.*)", log)
    assert attempts[0] == attempts[-1] == "node1, node2, node3" and "node1, node3" in attempts, log
    assert "managed: to be replaced: node2" in log, "the decisions are in the job's log"

    done = {int(line["step"]): line for line in metrics(cluster, job)}
    assert sorted(done) == list(range(1, STEPS + 1)), "every step"
    assert done[STEPS]["tokens"] == expected["tokens"]
    # Two ranks sum in another order than three, and a thousand steps of fp32 make something of that.
    assert done[STEPS]["val_loss"] == pytest.approx(expected["val_loss"], rel=5e-3)
    assert not (cluster.home / ".trainyard" / cluster.stack / "managed").exists(), "nothing stays of a job that is done"


@pytest.mark.soak
def test_a_managed_elastic_job_goes_on_from_memory_and_takes_the_new_machine_in(
    expected: dict[str, Any], cluster: Project, tmp_path: Path
) -> None:
    """Its machine is killed, and its manager once the next one is there: no attempt is started again."""
    first, second = tmp_path / "first", tmp_path / "second"
    manager = manage(cluster, first, "smoke", *LONG, PATIENT, "--elastic")
    until(lambda: "step 100/" in first.read_text(), 300, lambda: f"step 100:\n{first.read_text()}")
    (job,) = re.findall(r"^(\S+-\d+): 3 ranks", first.read_text(), re.M)
    cut_power(cluster.stack, "node3")
    until(lambda: "node3 replaced" in first.read_text(), 120, lambda: f"a new machine:\n{first.read_text()}")
    os.killpg(manager.pid, signal.SIGKILL)

    manager = manage(cluster, second, "--resume", job)
    assert manager.wait(600) == 0, second.read_text()
    said, log = second.read_text(), cluster.fab("logs", job).stdout
    assert f"managed: {job} SUCCEEDED after 1 replacement" in said
    assert len(re.findall(r"attempt \d+: ", log)) == 1 and "from a checkpoint" not in log, log
    assert "node3 is a new machine: /data/smoke is copied to it" in log, log
    assert "rank 2 on node3 has joined: 3 ranks" in log and "managed: to be replaced: node3" in log
    lines = metrics(cluster, job)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1)), "every step, once"
    gaps = [after["time"] - line["time"] for line, after in pairwise(lines)]
    ranks = [len(line["rank_seconds"]) for line in lines]
    assert max(gaps) < GO_ON and set(ranks) == {2, 3} and ranks[-1] == 3
    assert lines[-1]["tokens"] == expected["tokens"]
    assert lines[-1]["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-4)
    page = tmp_path / "report.html"
    cluster.fab("report", job, "--out", str(page))
    assert "to be replaced: node3" in page.read_text(), "the decisions are in the report"


@pytest.mark.soak
def test_hugging_faces_trainer_runs_unchanged_and_goes_on_from_its_checkpoint(cluster: Project, tmp_path: Path) -> None:
    """Here, as it takes long: each node imports transformers."""
    user_programs.check_finetune(cluster, user_programs.with_transformers(tmp_path / "work"))
