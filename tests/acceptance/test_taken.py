"""A cloud takes a node of a running job: the job stops with a checkpoint in the seconds that are left, and says why.

The nodes are real, and so are the job and the service that asks the metadata service; the metadata service is a program
on each node that answers as EC2's does. Nothing else of a cloud is there.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from jobs_on_nodes import ENDLESS, GO_ON, LONG, Job, folder, parts, process, processes
from polling import until
from project import ROOT, Project

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]

IMDS = """
import http.server, pathlib
NOTICE = pathlib.Path("/run/instance-action")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        self.answer(200, b"token-1") if self.path == "/latest/api/token" else self.answer(404, b"")
    def do_GET(self):
        if self.headers["X-aws-ec2-metadata-token"] != "token-1":
            self.answer(401, b"")
        elif self.path == "/latest/meta-data/spot/instance-action" and NOTICE.exists():
            self.answer(200, NOTICE.read_bytes())
        elif self.path == "/latest/meta-data/events/maintenance/scheduled":
            self.answer(200, b"[]")
        else:
            self.answer(404, b"")
    def answer(self, code, body):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", 8169), Handler).serve_forever()
"""
PATIENT = "train.timeout=120"
SECONDS = 20.0
"""From the notice to the job's end; the least that a cloud leaves is 30."""


def put(project: Project, path: str, content: str) -> None:
    packed = base64.b64encode(content.encode()).decode()
    project.fab("run", f"sudo mkdir -p {Path(path).parent} && echo {packed} | base64 -d | sudo tee {path} >/dev/null")


@pytest.fixture(scope="module")
def spot(cluster: Project) -> Project:
    """The cluster, taken for Spot machines of EC2's: they hear of a notice as they would there."""
    put(cluster, "/run/imds.py", IMDS)
    put(
        cluster,
        "/opt/trainyard/bootstrap/aws-xeon/notice.py",
        (ROOT / "bootstrap/aws-xeon/notice.py").read_text(),
    )
    cluster.fab("run", "sudo systemd-run --unit=imds python3 /run/imds.py")
    cluster.fab(
        "run",
        "sudo sed -i s/CLUSTER=.*/CLUSTER=aws-xeon/ /etc/trainyard.env && "
        "echo TRAINYARD_IMDS=http://127.0.0.1:8169 | sudo tee -a /etc/trainyard.env && "
        "sudo systemctl restart trainyard-bootstrap",
    )
    cluster.fab("wait")
    return cluster


@pytest.fixture
def notice(spot: Project) -> Iterator[Callable[..., str]]:
    """Announce that a node is taken in two minutes, or so many seconds; when, as it is said."""

    def announce(node: str, seconds: float = 120) -> str:
        at = time.time() + seconds
        action = {"action": "terminate", "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))}
        encoded = base64.b64encode(json.dumps(action).encode()).decode()
        spot.ssh(node, f"echo {encoded} | base64 -d | sudo tee /run/instance-action.new >/dev/null &&"
                       " sudo mv /run/instance-action.new /run/instance-action")  # fmt: skip
        return time.strftime("%H:%M:%SZ", time.gmtime(at))

    yield announce
    spot.fab("run", "sudo rm -f /run/instance-action")
    until(lambda: not any(notices(spot).values()), 15, "every notice is withdrawn")


def notices(project: Project) -> dict[str, str]:
    nodes = json.loads(project.fab("status", "--json").stdout)["nodes"]
    return {node["name"]: node["notice"] for node in nodes}


@pytest.mark.parametrize(
    "node", [pytest.param("node2", id="worker", marks=pytest.mark.soak), pytest.param("node1", id="head")]
)
def test_a_job_stops_with_a_checkpoint_before_one_of_its_nodes_is_taken(
    spot: Project, start: Callable[..., Job], notice: Callable[..., str], node: str
) -> None:
    spot.fab("run", "mkdir -p /tmp/shelf")
    job = start(ENDLESS, PATIENT, "checkpoint.mirror=file:///tmp/shelf")
    at = notice(node)
    began = time.monotonic()
    why = f"{node}: EC2 takes this Spot node at {at}"
    until(lambda: job.state()["state"] == "CANCELLED", SECONDS, "the job is stopped")
    print(f"stopped {time.monotonic() - began:.1f} s after the notice")
    reason = job.state()["reason"]
    saved = re.fullmatch(rf"{re.escape(why)}; stopped: step (\d+) is in the checkpoint", reason)
    assert saved, reason
    job.ends()
    log = spot.fab("logs", job.id).stdout
    assert f"warning: {why}; before that the job is stopped with a checkpoint" in log
    assert f"{node} is about to go: EC2 takes this Spot node at {at}" in spot.fab("status").stdout
    there = spot.fab("run", f"ls runs/{job.id}/checkpoints").stdout
    step = f"step-{int(saved[1]):06d}"
    assert sorted(re.findall(rf"\[(node\d)\] {step}", there)) == ["node1", "node2", "node3"]
    mirrored = spot.ssh("node1", f"ls /tmp/shelf/{job.id}/checkpoints/{step}").stdout
    assert "manifest.json" in mirrored, "rank 0 has sent that step before the job ended"

    # While the notice stands, a job is not even started there; afterwards it goes on where it was.
    again = start("--resume", job.id, ENDLESS, PATIENT, step=0)
    again.ends(60)
    assert again.state()["reason"].startswith(f"{why}; stopped")
    spot.fab("run", "sudo rm -f /run/instance-action")
    until(lambda: not any(notices(spot).values()), 15, "the notice is withdrawn")
    resumed = start("--resume", job.id, ENDLESS, PATIENT, step=int(saved[1]) + 3)
    assert resumed.state()["state"] == "RUNNING"
    spot.fab("stop", job.id)


def test_a_job_does_not_wait_for_a_bucket_that_hangs_until_its_node_is_taken(
    spot: Project, start: Callable[..., Job], notice: Callable[..., str]
) -> None:
    """Within the 30 seconds that Azure leaves. What is not in the bucket is said."""
    spot.fab("run", "mkdir -p /tmp/shelf")
    job = start(ENDLESS, PATIENT, "checkpoint.mirror=file:///tmp/shelf", "checkpoint.every=5", step=12)
    sender = r"\S+python\S* -m training\.store\.mirror_process "
    until(lambda: processes(spot, "node1", sender), 30, "the mirror's process")
    os.kill(process(spot, "node1", sender), signal.SIGSTOP)
    notice("node1", 30)
    until(lambda: job.state()["state"] == "CANCELLED", 28, "the job is stopped before that")
    saved = re.search(r"stopped: step (\d+) is in the checkpoint", job.state()["reason"])
    assert saved, job.state()["reason"]
    job.ends()
    step = f"checkpoint of step-{int(saved[1]):06d} on the nodes only; the newest that was sent is step-"
    assert f"/{job.id}: no time is left for the upload: {step}" in spot.fab("logs", job.id).stdout


@pytest.mark.soak
def test_with_restarts_a_job_goes_on_without_the_node_that_is_taken(
    spot: Project, start: Callable[..., Job], notice: Callable[..., str]
) -> None:
    job = start(ENDLESS, PATIENT, "--restarts", "1")
    notice("node3")
    until(lambda: job.state()["nodes"] == ["node1", "node2"], SECONDS, "the job is on two nodes")
    assert job.state()["attempt"] == 2
    began = int(re.findall(r"step (\d+)/", job.text())[-1])
    job.reaches(began + 5)
    assert "restart from the last checkpoint on 2 nodes; 0 more allowed" in job.text()
    notice("node2")
    until(lambda: job.state()["state"] == "CANCELLED", SECONDS, "no restart is left")


@pytest.mark.soak
def test_an_elastic_job_leaves_the_node_that_is_taken_and_goes_on_from_memory(
    spot: Project, start: Callable[..., Job], notice: Callable[..., str]
) -> None:
    """Its ranks join again when the notice is withdrawn. For the head, which has the job's files, the job stops."""
    job = start("--elastic", "--restarts", "1", ENDLESS, *LONG, PATIENT, step=20)
    at, began = notice("node3"), time.time()
    until(partial(job.says, "node3: rank 2 left before it is taken; 2 ranks go on"), GO_ON)
    until(partial(job.has_steps, len(job.times()) + 6), GO_ON, "steps of two ranks")
    assert parts(spot, job.id, "node3") and not ranks_of(spot, job.id, "node3"), "its keeper alone is left"
    assert f"warning: node3: EC2 takes this Spot node at {at}; rank 2 to leave after this step, 2 go on" in job.text()
    spot.ssh("node3", "sudo rm -f /run/instance-action")
    until(partial(job.says, "rank 2 on node3 has joined: 3 ranks"), 60)
    until(partial(job.has_steps, len(job.times()) + 6), GO_ON, "steps of three ranks")
    record = json.loads((folder(spot, job.id, "node1") / "state.json").read_text())
    assert (record["attempt"], record["restarts_left"], record["away"]) == (1, 1, [])
    at = notice("node1")
    until(lambda: job.state()["state"] == "CANCELLED", SECONDS, "the job is stopped")
    assert job.state()["reason"].startswith(f"node1: EC2 takes this Spot node at {at}; stopped: step ")
    seen = job.times()  # every step once
    gaps = {after[0] - before[0] for before, after in pairwise(seen.values())}
    first = next(when for when, ranks, _ in seen.values() if ranks == 2)
    print(f"two ranks {first - began:.1f} s after the notice; the longest step {max(gaps):.1f} s")
    assert max(gaps) < GO_ON and {ranks for _, ranks, _ in seen.values()} == {2, 3}
    spot.fab("run", "sudo rm -f /run/instance-action")
    until(lambda: not any(notices(spot).values()), 15, "every notice is withdrawn")
    fixed = start(f"train.steps={len(seen)}", *LONG, PATIENT, step=0)
    assert fixed.ends(240) == 0
    assert [one[2] for one in seen.values()] == pytest.approx([one[2] for one in fixed.times().values()], rel=1e-4)


def ranks_of(project: Project, job: str, node: str) -> list[int]:
    """The ranks of a job on a node."""
    found = parts(project, job, node)
    return [pid for pid in found if b"training.train" in Path(f"/proc/{pid}/cmdline").read_bytes()]
