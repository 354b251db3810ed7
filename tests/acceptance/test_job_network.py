"""A job whose network or disk goes bad: out within the time-out and named, or slower and never wrong."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from jobs_on_nodes import ENDLESS, Job, Start, folder, parts
from on_host import boots
from polling import until
from project import Project

pytestmark = pytest.mark.faults

TIMEOUT = 15
"""train.timeout of the small job, in seconds."""
SLACK = 5.0


def losses(project: Project, job: Job) -> list[float]:
    path = folder(project, job.id, "node1") / "metrics.jsonl"
    return [json.loads(line)["loss"] for line in path.read_text().splitlines()]


@contextmanager
def in_network_of(project: Project, node: str, begin: str, end: str) -> Iterator[None]:
    """Between two commands in a node's network: what its own root, or a switch on the way, could do to it."""
    pid, _ = boots(project.stack)[node]
    subprocess.run(["nsenter", f"--target={pid}", "--net", "sh", "-ec", begin], check=True)
    try:
        yield
    finally:
        subprocess.run(["nsenter", f"--target={pid}", "--net", "sh", "-ec", end], check=True)


def test_what_a_node_sends_is_lost(cluster: Project, start: Start) -> None:
    """One way only: it hears the others, and none of them hears it. Its SSH to the operator's machine still works."""
    job = start(ENDLESS)
    others = [node["private_ip"] for node in cluster.inventory()["nodes"] if node["name"] != "node3"]
    begin = (
        "nft add table inet lost; nft add chain inet lost out '{ type filter hook output priority 0; }'; "
        f"nft add rule inet lost out ip daddr '{{ {', '.join(others)} }}' drop"
    )
    with in_network_of(cluster, "node3", begin, "nft delete table inet lost"):
        until(lambda: not parts(cluster, job.id), TIMEOUT + SLACK, "nothing of the job is left, on node3 neither")
        assert job.ends() == 1
    assert re.match(r"(node3 \(rank 2\) is cut off|rank 2 \(node3\) does not answer)", job.state()["reason"]), (
        job.text()
    )


@pytest.mark.soak
def test_a_slow_link_makes_it_slower_and_not_wrong(cluster: Project, start: Start) -> None:
    small = ["train.steps=3", "train.eval_windows=4", "model.n_embd=4", "checkpoint.every=3"]
    took, found = [], []
    for link in ("as it is", "1 Mbit/s"):
        begin, end = "true", "true"
        if link != "as it is":
            begin = "tc qdisc add dev host0 root tbf rate 1mbit burst 32kbit latency 50ms"
            end = "tc qdisc del dev host0 root"
        with in_network_of(cluster, "node3", begin, end):
            # The gradients have 0.8 MB.
            job = start(*small, "train.timeout=120", step=0)
            assert job.ends(400) == 0, job.text()
        found.append(losses(cluster, job))
        lines = (folder(cluster, job.id, "node1") / "metrics.jsonl").read_text().splitlines()
        took.append(sum(sum(json.loads(line)["seconds"].values()) for line in lines[1:]))
    assert found[0] == found[1] and len(found[0]) == 3
    assert took[1] > 5 * took[0], "the link was slow"


@pytest.mark.soak
def test_a_full_disk_of_a_node_is_said_and_the_job_goes_on_later(cluster: Project, start: Start) -> None:
    """Two checkpoints fit, and the third does not. Where there is room again, it goes on from the one before."""
    undisturbed = start(step=0)
    assert undisturbed.ends(120) == 0, undisturbed.text()
    full = "sudo mount -t tmpfs -o size=24m,mode=0777 tmpfs runs"
    cluster.fab("run", f"cd && mkdir -p runs && {full}", "--nodes", "node2")
    try:
        job = start("checkpoint.every=2", step=0)
        assert job.ends(120) == 1
        reason = job.state()["reason"]
        assert re.match(r"rank 1 \(node2\): \S*step-\d+: the disk is full \(0\.\d\d GB left\)", reason), job.text()
        there = cluster.fab("run", f"ls runs/{job.id}/checkpoints", "--nodes", "node2").stdout
        assert "step-000002" in there and ".tmp" not in there, there
    finally:
        cluster.fab("run", "cd && sudo umount runs", "--nodes", "node2")
    again = start("checkpoint.every=2", "--resume", job.id, step=0)
    assert again.ends(120) == 0, again.text()
    assert re.search(r"going on from step \d+, verified on disk", again.text())
    assert losses(cluster, again) == losses(cluster, undisturbed)


@pytest.mark.soak
def test_a_link_that_is_down_ends_it_in_time_and_it_goes_on_later(cluster: Project, start: Start) -> None:
    """As in test_job_faults; here the link comes back, and the job goes on from its checkpoint."""
    job = start("train.steps=60", step=7)
    link = f"vb-{cluster.stack}-node2"
    began = time.monotonic()
    subprocess.run(["ip", "link", "set", link, "down"], check=True)
    try:
        until(lambda: not parts(cluster, job.id), TIMEOUT + SLACK, "nothing of the job is left")
        assert job.ends() == 1 and time.monotonic() - began < TIMEOUT + SLACK
    finally:
        subprocess.run(["ip", "link", "set", link, "up"], check=True)
    assert job.state()["reason"].startswith("node2 (rank 1) is cut off")
    again = start("train.steps=60", "--resume", job.id, step=0)
    assert again.ends(120) == 0, again.text()
