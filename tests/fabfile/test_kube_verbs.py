"""The verbs on a Kubernetes cluster: check, status, wait, prepare, and a job from its start to its files. The API is a
server of the test's own; the head pod's programs are real."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fab_command import fab as run_fab
from kube_cluster import Kube, pod

from fabfile import output
from fabfile.backends.base import Unreachable
from fabfile.backends.kubernetes.backend import KubernetesBackend
from fabfile.check import all_reduce_in_pods
from fabfile.check import kubernetes as rules
from fabfile.check.verdict import Verdict
from fabfile.managed.look import Look
from fabfile.managed.watch import Seen
from fabfile.remote import ended
from fabfile.stacks import pulumi_cli, work_lost
from infra.inventory import KubeCluster, to_json


@dataclass(frozen=True)
class Done:
    """How a verb ended, and what it printed."""

    code: int
    out: str
    err: str


Fab = Callable[..., Done]


@pytest.fixture
def kube(kube: Kube) -> Kube:
    """With three machines, and the volume that all pods share."""
    for number in (1, 2, 3):
        kube.put(machine(f"machine{number}"))
    kube.put(bound("Bound"))
    return kube


@pytest.fixture
def fab(kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fab:
    """Run a verb on the server's cluster."""
    monkeypatch.setattr(output, "_target", [""])  # a verb leaves its `--inventory` there

    def run(*words: str, cluster: KubeCluster | None = None) -> Done:
        inventory = tmp_path / "inventory.json"
        inventory.write_text(to_json(cluster or kube.cluster))
        code = run_fab(*words, "--inventory", str(inventory))
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


def machine(name: str, ready: str = "True", **allocatable: str) -> dict[str, Any]:
    status = {"conditions": [{"type": "Ready", "status": ready}], "allocatable": allocatable}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}, "status": status}


def bound(phase: str) -> dict[str, Any]:
    named = {"name": "shared", "namespace": "train"}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": named, "status": {"phase": phase}}


def lines(text: str) -> dict[str, str]:
    """Check -> its line."""
    return {line.split()[1]: line for line in text.splitlines() if line.split()[0] in ("pass", "warn", "fail")}


@pytest.fixture
def has_software(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a network, which no pod of these measures, and a name that this machine knows."""
    monkeypatch.setattr(rules, "_STARTS", "echo 2.13.0")
    monkeypatch.setattr(rules, "_API_NAME", "localhost")
    monkeypatch.setattr(all_reduce_in_pods, "verdict", lambda _, what: Verdict(what.check, "pass", "measured"))


def test_a_check_looks_at_each_part_that_a_job_needs(fab: Fab, kube: Kube, has_software: None) -> None:
    done = fab("check")
    assert done.code == 0, done.out
    found = lines(done.out)
    assert list(found) == ["api", "nodes", "volume", "operator", "image", "dns", "all-reduce"]
    assert "3 ready" in found["nodes"] and "the claim shared is bound" in found["volume"]
    assert "would take a PyTorchJob of 3 pods" in found["operator"] and "torch 2.13.0" in found["image"]
    assert "pod trainyard-head-x on machine1" in found["image"]
    assert "localhost is 127.0.0.1, looked up in a pod in" in found["dns"]
    assert not [one for key, one in kube.objects.items() if key[0] == "PyTorchJob"], "a dry run makes none"
    assert done.out.splitlines()[-1].startswith("next: fab train")


def test_a_check_names_what_is_missing(fab: Fab, kube: Kube) -> None:
    kube.put(machine("machine2", "Unknown"))
    kube.put(bound("Pending"))
    kube.unknown.add("PyTorchJob")
    done = fab("check")
    found = lines(done.out)
    assert done.code == 1 and found["nodes"].startswith("fail")
    assert "2 of 3 machines are ready; machine2 is not ready" in found["nodes"]
    assert "the claim shared is Pending; mend: kubectl -n train describe pvc shared" in found["volume"]
    assert "Kubeflow's training operator is not installed there" in found["operator"]
    assert found["image"].startswith("fail") and "exit code" in found["image"], "this machine has no such software"
    assert "not tried: a job needs what has failed (nodes, volume, operator, image)" in found["all-reduce"]
    assert "dns" not in found, "the pod that would look a name up has failed already"


def test_a_name_service_that_does_not_answer_is_a_failure_and_the_network_is_measured_all_the_same(
    fab: Fab, has_software: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "_API_NAME", "no-such-name.invalid")
    done = fab("check")
    found = lines(done.out)
    assert done.code == 1 and found["all-reduce"].startswith("pass")
    assert found["dns"].startswith("fail") and "cannot look up no-such-name.invalid: exit code 1: " in found["dns"]
    assert "gaierror" in found["dns"] and found["dns"].endswith("trainyard-head-x -- cat /etc/resolv.conf")


def test_gpus_and_efa_cards_are_resources_of_enough_machines(fab: Fab, kube: Kube, has_software: None) -> None:
    cluster = replace(kube.cluster, workers=2, gpus_per_worker=8, efa_per_worker=4)
    for number in (1, 2):
        resources = {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "4"}
        kube.put(machine(f"machine{number}", **resources))
    found = lines(fab("check", cluster=cluster).out)
    good = found["nodes"]
    assert good.startswith("pass") and "2 ready, 8 nvidia.com/gpu each, 4 vpc.amazonaws.com/efa each" in good
    assert list(found)[-2:] == ["all-reduce", "nccl"]
    kube.put(machine("machine2", **{"nvidia.com/gpu": "8"}))
    bad = lines(fab("check", cluster=cluster).out)["nodes"]
    assert bad.startswith("fail") and "1 of 2 machines are ready with 8 nvidia.com/gpu each" in bad
    assert "its device plugin does not run" in bad


def test_nodes_that_may_not_be_seen_are_a_warning(fab: Fab, kube: Kube, has_software: None) -> None:
    kube.refuse("/api/v1/nodes", 403, 'nodes is forbidden: User "me" cannot list resource "nodes"')
    done = fab("check")
    assert done.code == 0 and lines(done.out)["nodes"].startswith("warn")
    assert fab("wait").code == 0, "which does not keep a job from running"


def test_an_api_that_does_not_answer_ends_the_check(fab: Fab, kube: Kube) -> None:
    kube.refuse("/", 401, "Unauthorized")
    done = fab("check")
    assert done.code == 1 and list(lines(done.out)) == ["api"] and "401: does not accept" in done.out


def test_status_shows_machines_and_the_jobs_on_them(fab: Fab, kube: Kube) -> None:
    kube.put(machine("machine3", "False"))
    kube.put(pod("demo-1-master-0", job="demo-1", phase="Running", machine="machine2"))
    kube.put(pod("demo-0-master-0", job="demo-0", phase="Succeeded", machine="machine1"))
    done = fab("status")
    rows = [line.split() for line in done.out.splitlines()]
    assert ["machine1", "ready", "-", "-"] in rows and ["machine2", "ready", "-", "demo-1"] in rows
    assert ["machine3", "not", "ready", "-", "-"] in rows
    answer = json.loads(fab("status", "--json").out)
    assert answer["machines"][1] == {"name": "machine2", "state": "ready", "gpus": "-", "jobs": "demo-1"}


@pytest.mark.parametrize("by", ["condition", "taint"])
def test_a_machine_whose_disk_is_full_is_shown_and_seen_by_the_manager(
    by: str, fab: Fab, kube: Kube, has_software: None
) -> None:
    """Kubernetes puts no pods there, and ends those that are."""
    full = machine("machine3")
    full["status"]["conditions"].append({"type": "DiskPressure", "status": str(by == "condition")})
    taint = {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}
    full["spec"] = {"taints": [taint]} if by == "taint" else {}
    well = machine("machine2")
    well["status"]["conditions"].append({"type": "DiskPressure", "status": "False"})
    well["spec"] = {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}
    kube.put(full)
    kube.put(well)
    rows = [line.split() for line in fab("status").out.splitlines()]
    assert ["machine3", "out", "of", "disk", "-", "-"] in rows and ["machine2", "ready", "-", "-"] in rows
    said = lines(fab("check").out)["nodes"]
    assert said.startswith("fail") and "2 of 3 machines are ready" in said and "machine3 is out of disk" in said
    seen = {node.name: node for node in Look(kube.cluster).nodes()}
    assert seen["machine2"].is_well and not seen["machine3"].is_well
    assert seen["machine3"].reason == "its disk is full: Kubernetes reports DiskPressure"


def test_a_machine_of_this_host_that_has_ended_is_known_before_its_api_knows(
    fab: Fab, kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And if the API's own has ended, which then says nothing."""
    monkeypatch.setattr(ended, "_GROUPS", f"{tmp_path}/")
    for name, populated in (("node1", 1), ("node2", 0)):
        (tmp_path / "groups" / name).mkdir(parents=True)
        (tmp_path / "groups" / name / "cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")
        kube.put(machine(name))
    cluster = replace(kube.cluster, workers=2, control_groups=str(tmp_path / "groups"))
    status = fab("status", cluster=cluster).out
    assert "node2     gone" in status and "node1     ready" in status and f"node2 is gone: {ended.WHY}" in status
    waited = fab("wait", cluster=cluster)
    assert waited.code == 1 and f"1 of 2 machines are gone: node2: {ended.WHY}" in waited.err
    checked = lines(fab("check", cluster=cluster).out)
    assert list(checked) == ["api"] and f"node2: {ended.WHY}; mend: fab up" in checked["api"]
    kube.put({**machine("node1"), "spec": {"unschedulable": True}})
    assert {node.name: node.state for node in Look(cluster).nodes() if "node" in node.name} == {
        **{"node1": "cordoned", "node2": "gone"}
    }
    kube.refuse("/", 500, "etcd is away")
    assert Look(cluster).nodes() == [Seen("node2", "gone", ended.WHY)]
    three = replace(cluster, workers=3)  # one was removed and could not be made again
    assert [node.name for node in Look(three).nodes()] == ["node2", "node3"]
    (tmp_path / "groups/node2/cgroup.events").write_text("populated 1\n")
    with pytest.raises(Unreachable, match="etcd is away"):
        Look(cluster).nodes()


def test_wait_ends_when_the_cluster_takes_jobs_or_says_what_it_lacks(fab: Fab, kube: Kube) -> None:
    done = fab("wait")
    assert done.code == 0 and "3 machines of kind ready in" in done.out
    kube.put(machine("machine2", "Unknown"))
    done = fab("wait", "--timeout", "0.5")
    assert done.code == 1 and "not ready after 0.5 s: 2 of 3 machines are ready" in done.err


def test_a_token_set_must_be_where_all_pods_see_it(fab: Fab) -> None:
    done = fab("prepare", "demo", "data.path=/mnt/set")
    assert done.code == 2 and "data.path = /mnt/set: must be below /" in done.err and "/shared or /data" in done.err


def submitted(cluster: KubeCluster) -> None:
    """Submit smoke-1, on two machines."""
    from fabfile.backends.submission import Submission
    from fabfile.job_file import resolve

    with KubernetesBackend(cluster) as backend:
        backend.submit(Submission(job=resolve("smoke", (), 2), nodes=2))


@pytest.mark.acceptance  # ten verbs, each with programs in the head pod
def test_the_verbs_of_jobs_are_the_same_with_trainjobs(fab: Fab, kube: Kube, has_software: None) -> None:
    cluster = replace(kube.cluster, job_kind="TrainJob")
    done = fab("check", cluster=cluster)
    assert done.code == 0, done
    assert "Kubeflow Trainer would take a TrainingRuntime of 3 pods" in lines(done.out)["operator"]
    kube.applied.clear()
    done = fab("train", "smoke", "--dry-run", cluster=cluster)
    assert done.code == 0 and "kind: TrainJob" in done.out
    assert "kind: PyTorchJob" not in done.out and not kube.applied
    submitted(cluster)
    assert "PENDING" in fab("jobs", cluster=cluster).out
    done = fab("stop", "smoke-1", cluster=cluster)
    assert done.code == 0 and "smoke-1 CANCELLED: stopped before it started" in done.out, done.err
    assert "smoke-1 CANCELLED" in fab("logs", "smoke-1", "--follow", cluster=cluster).out
    kube.unknown = {"TrainJob"}
    done = fab("jobs", cluster=cluster)
    assert done.code == 1 and done.err.endswith(": Kubeflow Trainer v2 is not installed there\n"), done


@pytest.mark.acceptance  # likewise
def test_a_job_from_its_dry_run_to_its_end(fab: Fab, kube: Kube, tmp_path: Path) -> None:
    done = fab("train", "smoke", "--dry-run")
    assert done.code == 0 and "kind: PyTorchJob" in done.out and not kube.applied and not kube.execs
    again = "# after a lost rank, pod or machine the job goes on from the newest whole checkpoint, up to 3 times"
    assert again in done.out
    never, twice = (fab("train", "smoke", "--dry-run", "--restarts", number).out for number in "02")
    assert "# a rank, pod or machine that is lost ends the job (--restarts N)" in never and again not in never
    assert "# after a loss or failure the job goes on from the newest whole checkpoint, up to 2 times\n" in twice
    submitted(kube.cluster)
    done = fab("train", "smoke", "--nodes", "2")
    assert done.code == 1 and "1 of 3 machines free, 2 wanted; busy with smoke-1 (2)" in done.err
    assert "smoke-1" in (table := fab("jobs").out) and "PENDING" in table and "its pods start" in table
    assert json.loads(fab("jobs", "--json").out)[0]["id"] == "smoke-1"
    done = fab("stop", "smoke-1")
    assert done.code == 0 and "smoke-1 CANCELLED: stopped before it started" in done.out, done.err
    assert "smoke-1 is CANCELLED already" in fab("stop", "smoke-1").out
    assert "smoke-1 CANCELLED" in fab("logs", "smoke-1", "--follow").out
    done = fab("fetch", "smoke-1", "--to", str(tmp_path / "got"))
    assert done.code == 0 and (tmp_path / "got/job.toml").is_file(), done.err
    assert fab("report", "smoke-1", "--out", str(tmp_path / "r.html")).code == 0 and (tmp_path / "r.html").is_file()


def test_before_a_destroy_the_jobs_that_end_with_it_are_named(
    fab: Fab, kube: Kube, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pulumi_cli, "stack_output", lambda stack: to_json(kube.cluster))
    work_lost.say_of_destroy("kind")
    assert "trainyard-head is not there" in capsys.readouterr().out and not kube.applied, (
        "nothing is made to be removed"
    )
    submitted(kube.cluster)
    work_lost.say_of_destroy("kind")
    assert "job smoke-1 is PENDING on no node yet: it ends with them" in capsys.readouterr().out
