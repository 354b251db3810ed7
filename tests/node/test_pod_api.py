"""What a pod asks of the cluster's API, and how the pods of dead machines make room for new ones."""

from __future__ import annotations

import copy
import socket
import time
from contextlib import closing
from pathlib import Path

import pytest
from pod_api import JOB, PodApi, served
from pods import job_of
from polling import until

from node.kubernetes import dead_machines
from node.kubernetes.api import Api, ApiError, ChangedError, PodState
from node.kubernetes.dead_machines import Answer, DeadMachines
from node.kubernetes.identity import Pod

NOBODY = "255.255.255.255"
"""An address to which the kernel itself refuses to connect: nothing is sent."""


@pytest.fixture
def api(server: PodApi) -> Api:
    return Api(server.account, server.environment)


def test_the_pods_of_a_job_have_their_numbers_and_machines(server: PodApi, api: Api) -> None:
    server.pod("demo-1-worker-1", "m3", "10.0.0.3")
    server.pod("demo-1-worker-0", "m2")
    server.pod("demo-1-master-0", "")
    server.pod("demo-1-worker-2", "m4", "10.0.0.4", phase="Succeeded")
    found = [(pod.index, pod.name, pod.machine, pod.host_ip) for pod in api.pods(JOB)]
    assert found == [
        (0, "demo-1-master-0", "", ""),
        (1, "demo-1-worker-0", "m2", ""),
        (2, "demo-1-worker-1", "m3", "10.0.0.3"),
    ]


def test_a_pod_is_deleted_at_once_and_never_the_one_in_its_place(server: PodApi, api: Api) -> None:
    server.pod("demo-1-worker-0", "m2")
    (pod,) = api.pods(JOB)
    server.pod("demo-1-worker-0", "m3")
    with pytest.raises(ApiError, match=r"the API refuses \(409\): the UID in the precondition does not match"):
        api.force_delete(pod)
    api.force_delete(api.pods(JOB)[0])
    assert server.deleted == ["demo-1-worker-0 uid-2"] and api.pods(JOB) == []


def test_a_token_that_was_replaced_is_read_again(server: PodApi, api: Api) -> None:
    assert api.pods(JOB) == []
    server.renew("second")
    assert api.pods(JOB) == []


def test_what_the_api_refuses_is_said_in_its_words(server: PodApi, api: Api) -> None:
    (server.account / "namespace").write_text("other")
    with pytest.raises(ApiError, match=r'refuses \(403\): pods is forbidden: User "jobs" cannot list resource "pods"'):
        api.pods(JOB)
    (server.account / "token").write_text("stolen")
    with pytest.raises(ApiError, match=r"refuses \(401\): Unauthorized"):
        api.pods(JOB)


def test_an_api_that_does_not_answer_or_is_not_the_clusters_is_no_surprise(
    server: PodApi, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    assert api.pods(JOB) == [], "no proxy stands between a pod and its API"
    nobody = Api(server.account, {**server.environment, "KUBERNETES_SERVICE_PORT": "1"})
    with pytest.raises(ApiError, match=r"the API at https://127.0.0.1:1 does not answer: .*refused"):
        nobody.pods(JOB)
    (tmp_path / "second").mkdir()
    with served(tmp_path / "second") as other, pytest.raises(ApiError, match="certificate verify failed"):
        Api(server.account, other.environment).pods(JOB)
    with pytest.raises(ApiError, match="this pod has no service account"):
        Api(tmp_path / "none", server.environment).pods(JOB)


def test_a_machine_is_alive_that_refuses_and_dead_that_says_nothing() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as kubelet:
        assert dead_machines.answer("127.0.0.1", kubelet.getsockname()[1]) == "kubelet"
    assert dead_machines.answer("127.0.0.1", 1) == "kernel"
    assert dead_machines.answer(NOBODY) == ""


class Watched:
    """The look of a pod at the machines of the others, of which `dead` ones do not answer."""

    def __init__(self, api: Api) -> None:
        self.api = copy.copy(api)
        self.dead: set[str] = set()
        self.without_kubelet: set[str] = set()
        self.said: list[str] = []
        own = Pod(2, "demo-1-worker-1", "10.1.0.3", "m3", "10.0.0.3")
        self._machines = DeadMachines(self.api, JOB, own, self.said.append, self._answer)
        self._machines.know([Pod(1, "demo-1-worker-0", "10.1.0.1", "m2", "10.0.0.2")])

    def _answer(self, address: str) -> Answer:
        return "" if address in self.dead else "kernel" if address in self.without_kubelet else "kubelet"

    def api_knows(self, pods: list[PodState]) -> None:
        """Only these, whatever has become of them since."""
        self.api.pods = lambda job: pods  # type: ignore[method-assign]

    def look(self, *missing: int, seconds: float = 0.0) -> list[str]:
        """The names of the pods that it has seen."""
        time.sleep(seconds)
        return [pod.name for pod in self._machines.look(missing, 0.2)]


def test_only_missing_pods_of_machines_that_stay_silent_are_deleted(server: PodApi, api: Api) -> None:
    for name, machine, address in (
        ("master-0", "m1", "10.0.0.1"),
        ("worker-0", "m2", ""),
        ("worker-1", "m3", "10.0.0.3"),
        ("worker-2", "m5", "10.0.0.5"),
    ):
        server.pod(f"demo-1-{name}", machine, address)
    watched = Watched(api)
    assert len(watched.look(1, 2)) == 4 and watched.look() == []
    watched.dead = {"10.0.0.5", "10.0.0.2"}
    watched.look(1, 2)
    assert server.deleted == [], "it may come back"
    watched.look(1, 2, seconds=0.25)
    assert server.deleted == ["demo-1-worker-0 uid-2"], "not that on m5, which is not missing, and not that on m3"
    assert watched.said == ["m2's kubelet has not answered for 0 s: its pod demo-1-worker-0 is deleted"]
    server.pod("demo-1-worker-0", "m2")  # the scheduler has put it on the dead machine again: it has no address
    watched.look(1, 2)
    assert server.deleted[1:] == ["demo-1-worker-0 uid-5"]
    assert len(watched.said) == 1, "of each machine once"
    server.pod("demo-1-worker-0", "")
    watched.look(1, 2)
    server.pod("demo-1-worker-0", "m4", "10.0.0.4")
    watched.look(1, 2, seconds=0.25)
    assert len(server.deleted) == 2


def test_two_pods_that_free_the_same_place_complain_of_nothing(server: PodApi, api: Api) -> None:
    server.pod("demo-1-worker-0", "m2")
    faster, watched = Watched(api), Watched(api)
    for each in (faster, watched):
        each.dead = {"10.0.0.2"}
        each.look(1)
    time.sleep(0.25)
    found = api.pods(JOB)
    faster.look(1)
    watched.api_knows(found)
    watched.look(1)
    assert len(server.deleted) == 1 and len(faster.said) == 1 and watched.said == []


def test_a_machine_that_answers_in_between_is_given_its_time_again(server: PodApi, api: Api) -> None:
    server.pod("demo-1-worker-0", "m2")
    watched = Watched(api)
    watched.dead = {"10.0.0.2"}
    watched.look(1)
    watched.dead = set()
    watched.look(1, seconds=0.25)
    watched.dead = {"10.0.0.2"}
    watched.look(1)
    watched.look()
    watched.look(1, seconds=0.25)
    assert server.deleted == []


def test_a_pod_that_its_kubelet_should_have_ended_is_freed_when_that_is_gone(server: PodApi, api: Api) -> None:
    """The machine itself answers; without its kubelet the pod stays Terminating for ever."""
    server.pod("demo-1-worker-0", "m2", "10.0.0.2")
    watched = Watched(api)
    watched.without_kubelet = {"10.0.0.2"}
    watched.look(1)
    watched.look(1, seconds=0.25)
    assert server.deleted == [], "it may start anew"
    server.pod("demo-1-worker-0", "m2", "10.0.0.2", to_end_at="2026-01-01T00:00:00Z")
    watched.look(1)
    watched.look(1, seconds=0.25)
    assert server.deleted == ["demo-1-worker-0 uid-2"]


def test_a_pod_that_reaches_no_machine_at_all_takes_none_for_dead(server: PodApi, api: Api) -> None:
    """As where a firewall is between pods and kubelets: a pod that only starts slowly must not be deleted."""
    server.pod("demo-1-master-0", "m1", "10.0.0.1")
    server.pod("demo-1-worker-0", "m2", "10.0.0.2")
    watched = Watched(api)
    watched.dead = {"10.0.0.1", "10.0.0.2"}  # its own machine answers: that says nothing of the way to the others
    watched.look(1)
    watched.look(1, seconds=0.25)
    assert server.deleted == []
    assert watched.said == [
        "warning: pods of dead machines are not looked for: no machine answers this pod at port 10250, its kubelet's"
    ]
    server.pod("demo-1-worker-0", "m2", "10.0.0.2", to_end_at="2999-01-01T00:00:00Z")
    watched.look(1, seconds=0.25)
    watched.look(1, seconds=0.25)
    assert server.deleted == []
    server.pod("demo-1-worker-0", "m2", "10.0.0.2", to_end_at="2026-01-01T00:00:00Z")
    watched.look(1)
    watched.look(1, seconds=0.25)
    assert server.deleted == ["demo-1-worker-0 uid-4"], "Kubernetes has given it up, too"


def test_without_the_right_to_delete_it_is_said_once(server: PodApi, api: Api) -> None:
    (server.account / "namespace").write_text("other")
    watched = Watched(api)
    assert watched.look(1) == watched.look(1) == []
    assert len(watched.said) == 1
    assert watched.said[0].startswith("warning: pods of dead machines are not looked for: the API refuses (403)")


QUICK = {
    "node/kubernetes/dead_machines.py": ("DEAD = 10.0", "DEAD = 1.0"),
    "node/kubernetes/agent.py": ("_CONNECT_SECONDS = 1.5", "_CONNECT_SECONDS = 0.5"),
}


@pytest.mark.faults
@pytest.mark.parametrize("lost", [0, 2])
def test_a_dead_machines_pod_is_freed_by_a_pod_that_lives_and_the_job_goes_on(tmp_path: Path, lost: int) -> None:
    """The supervisor's own pod is freed by another one's agent."""
    with (
        served(tmp_path) as server,
        job_of(tmp_path, steps=40, restarts=1, changes=QUICK, environment=server.environment) as job,
    ):
        names = ["demo-1-master-0", "demo-1-worker-0", "demo-1-worker-1"]
        for index, name in enumerate(names):
            host_ip = NOBODY if index == lost else "127.0.0.1"
            server.pod(name, f"machine-{index}", host_ip)
            job.start(index, host_ip=host_ip)
        job.step(7)
        assert server.deleted == []
        job.kill(lost)
        until(lambda: server.deleted, 60)
        assert server.deleted == [f"{names[lost]} uid-{lost + 1}"]
        server.pod(names[lost], "machine-9", "127.0.0.1")
        job.start(lost, machine="machine-9")
        job.step(8, attempt=2)
        assert job.state["nodes"][lost] == "machine-9"
        job.ends("SUCCEEDED")
        assert f"machine-{lost}'s kubelet has not answered for" in job.log
        assert f"its pod {names[lost]} is deleted" in job.log


def test_a_pod_of_kubernetes_own_job_is_marked_as_failed_before_it_is_deleted(server: PodApi, api: Api) -> None:
    """A Job does not replace a pod that it has not seen fail. Its pods have their number from another label."""
    server.pod("demo-1-worker-1", "machine-2", "10.0.0.2")
    metadata = server.pods["demo-1-worker-1"]["metadata"]
    metadata["labels"] = {"trainyard.dev/job": JOB, "batch.kubernetes.io/job-completion-index": "1"}
    metadata["finalizers"] = ["batch.kubernetes.io/job-tracking"]
    (pod,) = api.pods(JOB)
    assert (pod.index, pod.tracked) == (1, True)
    metadata["uid"] = "another"
    with pytest.raises(ChangedError):
        api.force_delete(pod)
    assert not server.failed and not server.deleted
    (pod,) = api.pods(JOB)
    api.force_delete(pod)
    assert server.failed == ["demo-1-worker-1 DeletionByTrainyard"] and len(server.deleted) == 1
