"""`fab train --managed` on the command line: what it refuses, in one line and before anything is done."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from fab_command import fab
from invoke.exceptions import Exit
from memory_backend import MemoryBackend

from fabfile.backends.base import JobState
from fabfile.backends.submission import Submission
from fabfile.job_file import resolve
from fabfile.managed import replacement, start
from fabfile.managed.replacement import NoRoom, NotReplaced, make_again
from fabfile.managed.start import Options
from fabfile.stacks import capacity, pulumi_cli, work_lost
from infra.inventory import KubeCluster, Node, Queue, SshCluster

MINE = ("train", "smoke", "--managed", "--yes")
OVER_SSH = SshCluster(name="local", nodes=(Node(name="node1", private_ip="127.0.0.1"),))
WITH_QUEUE = replace(OVER_SSH, launcher="slurm", queue=Queue(name="gpu", nodes=2, node_prefix="gpu-dy-p3"))
ON_KUBERNETES = KubeCluster(name="local", namespace="default", image="x", workers=3, gpus_per_worker=0)
CHOSEN = Options(
    stack="local",
    inventory="",
    detach=False,
    every=None,
    max_usd=None,
    max_hours=None,
    tries=None,
    zones="",
    types="",
    yes=True,
)


@pytest.fixture(autouse=True)
def free_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "checked", lambda _stack: {"cloud": "", "max_hours": 0})


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("train", "smoke", "--max-usd", "3"), "--max-usd: goes with --managed"),
        (("train", "smoke", "--yes"), "--yes: goes with --managed"),
        (("train", "smoke", "--zones", "use1-az4"), "--zones: goes with --managed"),
        ((*MINE, "--inventory", "lab.json"), "--managed: only a stack's nodes can be replaced: --stack NAME in place"),
        ((*MINE, "--detach"), "--detach: with --managed this process is the manager"),
        ((*MINE, "--max-usd", "0"), "--max-usd 0: must be more than 0"),
        ((*MINE, "--max-hours", "-1"), "--max-hours -1: must be more than 0"),
        ((*MINE, "--tries", "0"), "--tries: must be a whole number of at least 1, not '0'"),
        ((*MINE, "--max-usd", "much"), "--max-usd: must be a number, not 'much'"),
        ((*MINE, "--zones", "a,,b"), "--zones 'a,,b': names, each once, with commas between them"),
        ((*MINE, "--types", "a,a"), "--types 'a,a': names, each once, with commas between them"),
        ((*MINE, "--zones", "use1-az4"), "--zones: stack local is no cloud's: it has no zone"),
        (MINE[:-1], "there is no terminal to ask on: add --yes"),
    ],
)
def test_what_cannot_be_is_one_line(
    words: tuple[str, ...], line: str, backend: MemoryBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fab(*words) == 2
    error = capsys.readouterr().err
    assert line in error and len(error.splitlines()) == 1 and backend.table == []


def test_a_sum_that_is_never_reached_is_refused(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start, "_usd", lambda _backend, _nodes: 0.0)
    assert fab(*MINE, "--max-usd", "3") == 2
    assert "--max-usd: local has no price, so that no sum is ever reached: leave it out" in capsys.readouterr().err


def test_other_places_need_a_bucket(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start, "checked", lambda _stack: {"cloud": "aws", "max_hours": 24})
    monkeypatch.setattr(start, "load_any", lambda _stack, _inventory: OVER_SSH)
    assert fab(*MINE, "--zones", "use1-az4") == 2
    assert "--zones: all nodes are then made again, and the job goes on from the bucket" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--zones", "--types"])
@pytest.mark.parametrize("who", ["Slurm's queue", "their node group"])
def test_other_places_are_refused_where_the_manager_makes_no_machines(
    flag: str, who: str, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = ON_KUBERNETES if who == "their node group" else WITH_QUEUE
    monkeypatch.setattr(start, "checked", lambda _stack: {"cloud": "aws", "max_hours": 24})
    monkeypatch.setattr(start, "load_any", lambda _stack, _inventory: cluster)
    assert fab(*MINE, flag, "x", "checkpoint.mirror=s3://b/runs") == 2
    why = f"the machines of local's jobs are replaced by {who}, where the stack has them: leave it out"
    assert capsys.readouterr().err == f"{flag}: {why}\n" and backend.table == []


def test_the_end_of_the_nodes_is_told_before_the_question(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start, "checked", lambda _stack: {"cloud": "aws", "max_hours": 24})
    monkeypatch.setattr(start, "load_any", lambda _stack, _inventory: OVER_SSH)
    assert fab(*MINE, "--max-hours", "24.5") == 2
    why = "the nodes of local end 24 h after their first boot (maxHours), and the job with them"
    assert capsys.readouterr().err == f"--max-hours 24.5: {why}\n" and backend.table == []
    told = []
    chosen = replace(CHOSEN, max_hours=24.0, yes=False)
    monkeypatch.setattr(start, "must_be_answerable", lambda _yes: None)
    monkeypatch.setattr(start, "ask", lambda _question: told.append(capsys.readouterr().out))
    with backend:
        start.agree(chosen, backend, "", 3)
    assert (
        "managed: each node ends 24 h after its first boot (maxHours), the job with it: that is not undone" in told[0]
    )


@pytest.mark.parametrize(
    ("changes", "is_refused"),
    [
        ({"nodes": ("node1", "node2")}, False),
        ({"nodes": ("node1", "node3")}, True),
        ({"nodes": ("node2", "node3"), "files_on": "node2"}, True),
        ({"nodes": ("node1", "node3"), "slurm": "17"}, False),
        ({"nodes": ("ip-10-0-1-7", "ip-10-0-1-9")}, False),  # of Kubernetes, where JobNodes stand for any machine
    ],
)
def test_a_job_under_way_is_managed_unless_the_head_has_chosen_its_nodes(
    changes: dict[str, Any], is_refused: bool, backend: MemoryBackend
) -> None:
    with backend:
        backend.submit(Submission(job=resolve("smoke", (), 2), nodes=2))
        backend.table = [replace(backend.table[0], **changes)]
        if not is_refused:
            assert start.known(CHOSEN, backend, "smoke-1") == backend.table[0]
            return
        with pytest.raises(Exit, match=r"--managed: for jobs on the first nodes .* smoke-1 is on node"):
            start.known(CHOSEN, backend, "smoke-1")


@pytest.mark.parametrize("words", [("train", "smoke"), ("train", "--resume", "smoke-1")])
def test_an_elastic_job_is_managed_over_ssh_alone(
    words: tuple[str, ...], backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with backend:
        if "--resume" in words:
            backend.submit(Submission(job=resolve("smoke", (), 3), nodes=3, elastic=True))
    before = list(backend.table)
    monkeypatch.setattr(start, "load_any", lambda _stack, _inventory: ON_KUBERNETES)
    assert fab(*words, *([] if before else ["--elastic"]), "--managed", "--yes") == 2
    assert capsys.readouterr().err == "--elastic: with --managed only over SSH; on Kubernetes one of the two\n"
    assert backend.table == before


@pytest.mark.parametrize(
    ("asked", "begun", "is_elastic"), [(True, True, True), (False, True, True), (False, False, False)]
)
def test_a_job_under_way_is_managed_as_it_was_begun(
    asked: bool, begun: bool, is_elastic: bool, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed: list[tuple[Options, Submission]] = []

    def manage(chosen: Options, _facts: object, record: Any, resubmit: start.Resubmit, *_: Any, resume: bool) -> Any:
        managed.append((chosen, resubmit(backend, record.job, 3)))
        return replace(backend.table[0], state=JobState.SUCCEEDED)

    monkeypatch.setattr(start, "load_any", lambda _stack, _inventory: OVER_SSH)
    monkeypatch.setattr(start, "manage", manage)
    with backend:
        backend.submit(Submission(job=resolve("smoke", (), 3), nodes=3, elastic=begun))
    assert fab("train", "--resume", "smoke-1", "--managed", "--yes", *(["--elastic"] if asked else [])) == 0
    assert [(chosen.elastic, again.elastic) for chosen, again in managed] == [(is_elastic, is_elastic)]


def test_a_job_under_way_does_not_become_elastic(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    with backend:
        backend.submit(Submission(job=resolve("smoke", (), 3), nodes=3))
    assert fab("train", "--resume", "smoke-1", "--managed", "--yes", "--elastic") == 2
    assert "--elastic: smoke-1 runs and was begun without it: leave it out" in capsys.readouterr().err


def test_a_dry_run_asks_nothing(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    assert fab("train", "smoke", "--managed", "--dry-run") == 0
    assert capsys.readouterr().out == "would run smoke on 3 nodes\n"


class Engine:
    """Plays `pulumi up`: how it ends, and what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, update: capacity.Update, goes: Collection[str] = ()) -> None:
        self.options: list[str] = []

        def up(_stack: str, _facts: Any, options: Collection[str]) -> capacity.Update:
            self.options = list(options)
            return update

        urns = [
            *(f"urn:pulumi:yard::t::aws:ec2/instance:Instance::node{number}" for number in (1, 2)),
            "urn:pulumi:yard::t::pulumi-python:dynamic/aws:HostKey::node2",
        ]
        monkeypatch.setattr(replacement, "pulumi_up", up)
        monkeypatch.setattr(pulumi_cli, "has_pulumi", lambda: True)
        monkeypatch.setattr(pulumi_cli, "stack_output", lambda _stack: "{}")
        monkeypatch.setattr(pulumi_cli, "exported", lambda _stack: [{"urn": urn} for urn in urns])
        monkeypatch.setattr(work_lost, "nodes_that_go", lambda _stack, _cloud: list(goes))


def test_a_node_that_still_runs_is_replaced_by_its_name_and_one_that_is_gone_comes_back_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(monkeypatch, capacity.Update(0, True))
    make_again("yard", {"cloud": "aws"}, ["node2"], [])
    assert engine.options[-2:] == ["--replace", "urn:pulumi:yard::t::aws:ec2/instance:Instance::node2"]
    make_again("yard", {"cloud": "aws"}, ["node2"], ["node2"])
    assert "--replace" not in engine.options and "--yes" in engine.options


def test_a_node_that_the_job_still_needs_is_never_replaced_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has changed the stack's file meanwhile."""
    engine = Engine(monkeypatch, capacity.Update(0, True), ["node1", "node2"])
    with pytest.raises(NotReplaced, match="`fab up` would also replace node1: its nodes differ"):
        make_again("yard", {"cloud": "aws"}, ["node2"], [])
    assert engine.options == []


def test_a_stack_that_somebody_destroyed_is_never_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nodes are gone as those that a cloud takes are."""
    engine = Engine(monkeypatch, capacity.Update(0, True), ["node2"])

    def not_up(stack: str) -> str:
        raise Exit(f"stack {stack} is not up; run: fab up --stack {stack}", code=2)

    monkeypatch.setattr(pulumi_cli, "stack_output", not_up)
    with pytest.raises(Exit, match="stack yard is not up"):
        make_again("yard", {"cloud": "aws"}, ["node2"], ["node2"])
    assert engine.options == []


@pytest.mark.parametrize("message", ["no-room", "quota", "azure"])
def test_a_clouds_own_words_for_no_room_are_understood(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {
        "no-room": ("api error InsufficientInstanceCapacity: We currently do not have ...", "no free machine"),
        "quota": ("api error VcpuLimitExceeded: You have requested more vCPU capacity", "the account's own limit"),
        "azure": ('Code="ZonalAllocationFailed" Message="Allocation failed."', "no free machine"),
    }
    said, why = words[message]
    event = {"diagnosticEvent": {"severity": "error", "message": said, "urn": "urn:pulumi:yard::t::x::node2"}}
    shortages = capacity.shortages(json.dumps(event))
    Engine(monkeypatch, capacity.Update(255, True, tuple(shortages)))
    with pytest.raises(NoRoom, match=rf"node2: \w+: .*{why}"):
        make_again("yard", {"cloud": "aws"}, ["node2"], [])


def test_an_up_that_fails_otherwise_and_one_that_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    Engine(monkeypatch, capacity.Update(1, True))
    with pytest.raises(NotReplaced, match="exit code 1"):
        make_again("yard", {"cloud": "aws"}, ["node2"], [])
    Engine(monkeypatch, capacity.Update(pulumi_cli.INTERRUPTED, True))
    with pytest.raises(KeyboardInterrupt):
        make_again("yard", {"cloud": "aws"}, ["node2"], [])
