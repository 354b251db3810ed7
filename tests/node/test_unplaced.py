"""Which pod of a job makes place for the first one, and when; and which are not waited for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from node.kubernetes.api import Api, ApiError, PodState
from node.kubernetes.identity import Pod
from node.kubernetes.unplaced import PATIENCE, Unplaced


@dataclass
class Pods:
    """The API, as far as it is asked."""

    found: list[PodState] = field(default_factory=list)
    down: bool = False

    def pods(self, _job: str) -> list[PodState]:
        if self.down:
            raise ApiError("no answer")
        return self.found


def pod(index: int, machine: str, uid: str = "a") -> PodState:
    return PodState(name=f"pod-{index}", uid=uid, index=index, machine=machine, host_ip="", overdue=False)


def own(index: int) -> Pod:
    return Pod(index, f"pod-{index}", "10.0.0.1", f"m{index}", "10.0.0.2")


def seen(api: Pods, now: list[float]) -> Unplaced:
    return Unplaced(cast(Api, api), "job-1", lambda: now[0])


@pytest.mark.parametrize(("index", "ends"), [(1, False), (2, True)])
def test_the_last_of_those_with_a_machine_ends_and_no_other(index: int, ends: bool) -> None:
    now, api = [100.0], Pods([pod(0, "", "x"), pod(1, "m1"), pod(2, "m2"), pod(3, "", "y")])
    found = seen(api, now)
    assert not found.need(own(index), api.found), "the first pod has only just begun to wait"
    now[0] += PATIENCE + 1
    assert found.need(own(index), api.found) is ends


def test_a_first_pod_that_finds_a_machine_or_is_made_again_is_waited_for_anew() -> None:
    now, api = [0.0], Pods([pod(0, "", "x"), pod(1, "m1")])
    found = seen(api, now)

    def later(*pods: PodState) -> bool:
        now[0] += PATIENCE + 1
        api.found = list(pods)
        return found.need(own(1), [] if api.down else api.found)  # as DeadMachines.look returns it

    found.need(own(1), api.found)
    assert not later(pod(0, "m0", "x"), pod(1, "m1"))
    assert not later(pod(0, "", "z"), pod(1, "m1"))
    assert later(pod(0, "", "z"), pod(1, "m1"))
    api.down = True
    assert not later(pod(0, "", "z"), pod(1, "m1")), "nobody ends for what is not known"
    api.down = False
    assert not later(pod(1, "m1")), "the operator has not made it yet"


def test_only_pods_that_find_no_machine_are_not_waited_for() -> None:
    now, api = [0.0], Pods([pod(0, "m0"), pod(1, "", "x"), pod(2, "m2")])
    found = seen(api, now)
    assert not found.have_no_machine([1])
    now[0] += PATIENCE + 1
    assert found.have_no_machine([1])
    assert not found.have_no_machine([1, 2]), "the second starts"
    assert not found.have_no_machine([]) and not found.have_no_machine([1, 7])
