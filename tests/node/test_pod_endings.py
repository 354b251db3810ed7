"""Why a pod of a job has ended: what Kubernetes says of it, also of one that is gone, and what a person is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pod_api import JOB, PodApi
from pods import job_of
from polling import until

from node.job import files
from node.kubernetes import pod_endings
from node.kubernetes.api import Api, ChangedError, RefusedError
from node.kubernetes.identity import Pod
from node.kubernetes.pod_endings import PodEndings, why_ends

EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "evicting"}
STARVED = {"containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]}
DRAINED = "its pod is evicted, as when its machine is drained"
KILLED = "its pod was killed for want of memory (OOMKilled)"
SOON = "2026-01-01T00:00:00Z"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / JOB).mkdir()
    return tmp_path / JOB


def watched(server: PodApi, run_dir: Path, said: list[str] | None = None) -> PodEndings:
    return PodEndings(Api(server.account, server.environment), run_dir, (said if said is not None else []).append)


def pod(name: str, ip: str) -> Pod:
    return Pod(1, name, ip, "node2", "10.0.0.2")


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({}, ""),
        ({"conditions": [EVICTED]}, DRAINED),
        ({"conditions": [{**EVICTED, "status": "False"}]}, ""),
        ({"conditions": [EVICTED], **STARVED}, KILLED),
        (
            {"conditions": [{**EVICTED, "reason": "TerminationByKubelet"}], "message": "The node was low on\nmemory."},
            "its kubelet ends its pod: The node was low on memory.",
        ),
        ({"conditions": [{**EVICTED, "reason": "New"}]}, "its pod is ended: New"),
        ({"reason": "NodeLost", "message": "Node node2 is gone"}, "its pod failed: NodeLost: Node node2 is gone"),
        ({"containerStatuses": [{"state": {"terminated": {"reason": "Error", "exitCode": 143}}}]}, ""),
    ],
)
def test_what_kubernetes_says_of_a_pod_is_one_line(status: dict[str, Any], why: str) -> None:
    assert why_ends({"metadata": {"name": "w"}, "status": status}) == why
    deleted = {"metadata": {"name": "w", "deletionTimestamp": SOON}, "status": status}
    assert why_ends(deleted) == why or (why == "" and why_ends(deleted) == "its pod is deleted")


def test_a_pod_that_the_operator_has_replaced_already_is_known_by_its_address(server: PodApi, run_dir: Path) -> None:
    server.happens("ADDED", "w-0", "10.1.0.2")
    server.happens("MODIFIED", "w-0", "10.1.0.2", **STARVED)
    server.happens("DELETED", "w-0", "10.1.0.2", to_end_at=SOON, **STARVED)
    server.happens("ADDED", "w-0", "10.1.0.3")
    found = watched(server, run_dir)
    assert found.why(pod("w-0", "10.1.0.2"), 5.0) == KILLED
    assert found.why(pod("w-0", "10.1.0.3")) == ""
    server.happens("MODIFIED", "w-0", "10.1.0.3", to_end_at=SOON, conditions=[EVICTED])
    assert found.why(pod("w-0", "10.1.0.3"), 5.0) == DRAINED
    server.happens("ADDED", "w-0", "10.1.0.2")
    until(lambda: found.why(pod("w-0", "10.1.0.2")) == "", 5, "another pod has its address now")


def test_the_next_supervisor_hears_what_has_ended_the_first_pod(server: PodApi, run_dir: Path) -> None:
    """It goes on where the one before it has watched, or, if that is too long ago, from now on."""
    server.happens("ADDED", "m-0", "10.1.0.2")
    files.write(run_dir / "pods.json", {"version": "1"})  # the one before it, in a process of its own
    server.happens("DELETED", "m-0", "10.1.0.2", **STARVED)
    assert watched(server, run_dir).why(pod("m-0", "10.1.0.2"), 5.0) == KILLED
    assert "1" in server.asked and files.read(run_dir / "pods.json") == {"version": "2"}
    files.write(run_dir / "pods.json", {"version": "old"})
    third = watched(server, run_dir)
    until(lambda: third.why(pod("m-0", "10.1.0.2")) == KILLED, 10)
    assert "old" in server.asked


def test_a_watch_needs_a_place_to_begin(server: PodApi) -> None:
    api = Api(server.account, server.environment)
    with pytest.raises(RefusedError, match=r"the API refuses \(500\): the required storage feature is disabled"):
        list(api.watch(JOB, ""))
    with pytest.raises(ChangedError, match=r"the API refuses \(410\): Expired"):
        list(api.watch(JOB, "old"))


def test_an_api_that_refuses_is_complained_of_once_and_waited_for_by_nobody(
    server: PodApi, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_endings, "_AGAIN", 0.1)
    (server.account / "namespace").write_text("other")
    said: list[str] = []
    found = watched(server, run_dir, said)
    until(lambda: said, 5)
    assert found.why(pod("w-0", "10.1.0.2"), 60.0) == ""
    assert len(said) == 1
    assert said[0].startswith("warning: why pods of this job end is not known: the API refuses (403)")


@pytest.mark.faults
@pytest.mark.parametrize("index", [0, 1])
def test_no_default_restart_follows_a_pod_that_wanted_too_much_memory(
    server: PodApi, tmp_path: Path, index: int
) -> None:
    """It would again. The first pod's end the next one hears of."""
    default: dict[str, Any] = {"restarts": 3, "after_losses_only": True}
    with job_of(tmp_path, steps=5000, pods=2, environment=server.environment, **default) as job:
        job.start(0)
        job.start(1)
        job.step(2)
        server.happens("DELETED", f"pods-{os.getpid()}-{index}-{index + 1}", f"127.0.0.{11 + index}", **STARVED)
        job.kill(index)
        if not index:
            job.start(0)
        record = job.ends("FAILED")
        assert record["reason"].endswith(KILLED), record
        assert (record["attempt"], record["ended_by"]) == (1, "program"), job.everything()


def test_a_lost_pod_is_named_with_its_rank_and_why(server: PodApi, tmp_path: Path) -> None:
    with job_of(tmp_path, steps=5000, pods=2, environment=server.environment) as job:
        job.start(0)
        job.start(1)
        job.step(2)
        server.happens("DELETED", f"pods-{os.getpid()}-1-2", "127.0.0.12", **STARVED)
        job.kill(1)
        reason = job.ends("FAILED")["reason"]
        assert reason.startswith("machine-1 (rank 1) is cut off: ") and reason.endswith(f"; {KILLED}"), reason
