"""`fab wait` where Slurm runs the jobs: until sinfo has every node, or why it will not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from invoke.exceptions import Exit

from fabfile.remote import slurm_nodes
from fabfile.remote.command import Result
from infra.inventory import Node, Queue, SshCluster

CLUSTER = SshCluster(
    name="lab", launcher="slurm", nodes=tuple(Node(name=f"node{n}", private_ip=f"10.0.0.{n}") for n in (1, 2))
)


QUEUE = SshCluster(
    name="cloud",
    launcher="slurm",
    nodes=(Node(name="head", private_ip="10.0.0.1", role="head"),),
    queue=Queue(name="queue1", nodes=2, node_prefix="queue1-dy-node"),
)


class Answers:
    """A fleet whose head gives sinfo's answers one after another, the last for ever."""

    def __init__(self, *answers: str | Result, cluster: SshCluster = CLUSTER) -> None:
        self.cluster = cluster
        self.left: Iterator[str | Result] = iter(answers)
        self.last: str | Result = ""
        self.asked = 0

    def run(self, command: str, *, nodes: Iterable[Node], **_: Any) -> dict[str, Result]:
        if not command.startswith("sinfo"):
            return {
                node.name: Result(
                    node.name, 0, stdout=f"{command.split('unit=')[1].split()[0]} on {node.name} says why\n"
                )
                for node in nodes
            }
        self.asked += 1
        self.last = next(self.left, self.last)
        answer = self.last if isinstance(self.last, Result) else Result("node1", 0, stdout=self.last)
        return {self.cluster.head.name: answer}


def rows(*states: str) -> str:
    return "".join(f"node{n}   {state}\n" for n, state in enumerate(states, 1))


def wait(fleet: Answers, timeout: float = 0.0) -> None:
    slurm_nodes.wait_until_usable(fleet, timeout)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", ["idle", "mixed", "allocated", "completing", "idle~", "idle#", "planned"])
def test_a_node_that_can_run_jobs_or_does_is_waited_for_no_longer(state: str) -> None:
    fleet = Answers(rows("idle none", f"{state} none"))
    wait(fleet)
    assert fleet.asked == 1


def test_it_asks_until_slurm_has_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_nodes, "_PAUSE", 0)
    nobody = Result("node1", 1, stderr="slurm_load_partitions: Unable to contact slurm controller (connect failure)\n")
    fleet = Answers(nobody, rows("idle none"), rows("idle none", "unknown* none"), rows("idle none", "idle none"))
    wait(fleet, 30)
    assert fleet.asked == 4


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (rows("idle none", "down* Not responding"), "node2  down* (Not responding)"),
        (rows("idle none", "idle* none"), "node2  idle*"),
        (rows("idle none"), "node2  unknown to Slurm"),
    ],
)
def test_a_node_that_does_not_come_is_named_with_reason_and_log(answer: str, line: str) -> None:
    with pytest.raises(Exit) as caught:
        wait(Answers(answer))
    lines = str(caught.value.message).splitlines()
    assert (caught.value.code, lines[0]) == (1, "Slurm cannot use 1 of 2 nodes after 0 s")
    assert lines[1:] == [line, "    slurmd on node2 says why", "next: fab ssh node2"]


def test_a_drained_node_is_not_waited_for() -> None:
    with pytest.raises(Exit, match=r"drained \(disk is full\)"):
        wait(Answers(rows("idle none", "drained disk is full")), 3600)


def test_a_controller_that_does_not_answer_is_named() -> None:
    with pytest.raises(Exit) as caught:
        wait(Answers(Result("node1", 1, stderr="x\ncannot connect\n")))
    lines = str(caught.value.message).splitlines()
    assert lines[1:3] == ["node1  slurmctld does not answer: cannot connect", "    slurmctld on node1 says why"]


def test_the_machines_of_a_queue_are_waited_for_and_not_the_head() -> None:
    """As AWS has it: the head is no node of Slurm's, and the queue's machines are down until a job needs them."""
    fleet = Answers("queue1-dy-node-1 idle~ none\nqueue1-dy-node-2 idle~ none\n", cluster=QUEUE)
    wait(fleet)
    assert fleet.asked == 1


def test_a_queues_machine_that_cannot_be_used_is_named_with_slurmctlds_log() -> None:
    why = "(Code:InsufficientInstanceCapacity)Failure when resuming nodes"
    rows_ = f"queue1-dy-node-1 idle~ none\nqueue1-dy-node-2 down# {why}\n"
    with pytest.raises(Exit) as caught:
        wait(Answers(rows_, cluster=QUEUE))
    lines = str(caught.value.message).splitlines()
    assert lines[:2] == ["Slurm cannot use 1 of 2 nodes after 0 s", f"queue1-dy-node-2  down ({why})"]
    assert lines[2:] == ["    slurmctld on head says why", "next: fab ssh head"]
