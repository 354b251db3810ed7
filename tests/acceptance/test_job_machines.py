"""Jobs on machines that run out of memory, or reboot themselves under it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from jobs_on_nodes import ENDLESS, GONE_SECONDS, Job, parts
from on_host import boots
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


@pytest.mark.parametrize("node", ["node2", "node1"], ids=["worker", "head"])
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
