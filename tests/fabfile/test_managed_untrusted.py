"""A managed job whose head or bucket lies: no file beside its record is read or written here, no file of this machine
that a job.toml of theirs names is sent, and the bounds stay."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fab_command import fab
from invoke.exceptions import Exit
from memory_backend import CREATED, MemoryBackend
from played_manager import Played, decisions, managed

from fabfile.backends.base import JobState
from fabfile.backends.submission import Submission, Submitted
from fabfile.job_file import resolve
from fabfile.managed import record as records
from fabfile.managed import relocation, start
from fabfile.managed.bounds import Bounds
from fabfile.managed.record import Record
from fabfile.managed.replacement import NoRoom
from fabfile.managed.start import Options
from fabfile.stacks import pulumi_cli
from infra.inventory import Node, SshCluster

pytest_plugins = ("played_manager",)
OVER_SSH = SshCluster(name="local", nodes=(Node(name="node1", private_ip="127.0.0.1"),))
MIRROR = "checkpoint.mirror=s3://bucket/runs"
CHOSEN = Options(
    stack="local",
    inventory="",
    detach=False,
    every=None,
    max_usd=5.0,
    max_hours=2.0,
    tries=3,
    zones="",
    types="",
    yes=True,
)
IDS = ["../../x", "../x-1", "/tmp/x-1", "..", "", "x", "x-1\n", "x-1/../y-1", "x\0-1"]


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def agreed(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """The records with which jobs would be managed; in a cloud, where every place is one."""
    found: list[Record] = []

    def manage(_chosen: object, _facts: object, record: Record, *_: object, resume: bool = False) -> Any:
        assert not resume
        found.append(record)
        raise Exit("managed", code=0)

    monkeypatch.setattr(start, "checked", lambda _stack: {"cloud": "aws", "max_hours": 0})
    monkeypatch.setattr(start, "load_any", lambda _stack, _inventory: OVER_SSH)
    monkeypatch.setattr(start, "manage", manage)
    monkeypatch.setattr(pulumi_cli, "ask", lambda _argv: "")
    return found


@pytest.mark.parametrize("job", IDS)
def test_an_id_that_is_none_never_becomes_a_path(job: str, home: Path) -> None:
    with pytest.raises(Exit, match="is no job's id") as refused:
        records.path_of("yard", job)
    assert refused.value.code == 2 and len(str(refused.value.message).splitlines()) == 1


@pytest.mark.parametrize("is_new", [True, False])
def test_the_id_of_a_lying_head_leads_nowhere(
    is_new: bool,
    home: Path,
    backend: MemoryBackend,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The head answers a submission, or lists its jobs."""
    (home / ".trainyard").mkdir()
    (home / ".trainyard/x.lock").write_text("keep this")
    monkeypatch.setattr(start, "checked", lambda _stack: {"cloud": "", "max_hours": 0})
    submit = MemoryBackend.submit

    def lie(self: MemoryBackend, submission: Submission) -> Submitted:
        submitted = submit(self, submission)
        self.texts["../../x"] = self.texts[submitted.id]
        self.table = [replace(self.table[0], id="../../x")]
        return Submitted("../../x")

    monkeypatch.setattr(MemoryBackend, "submit", lie)
    words = ["smoke"]
    if not is_new:
        words = ["--resume", "latest"]
        with backend:
            backend.submit(Submission(job=resolve("smoke", (), 3), nodes=3))
    before = files_below(home)
    assert fab("train", *words, "--managed", "--yes") == 2
    assert "'../../x' is no job's id" in capsys.readouterr().err
    assert files_below(home) == before


GOOD = {
    "job": "demo-1",
    "stack": "yard",
    "nodes": 3,
    "began": 1000.0,
    "bounds": {"max_usd": 5.0, "max_hours": None, "tries": 20},
    "prices": [[1000.0, 3.0]],
}


def kept(home: Path, **changes: Any) -> Record | None:
    path = records.path_of("yard", "demo-1")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**GOOD, **changes}))
    return records.load("yard", "demo-1")


def test_a_record_with_what_it_must_have_is_read(home: Path) -> None:
    read = kept(home, types=["m7i.4xlarge"], zones=["1"], decisions=[{"time": 1, "text": "goes on", "usd": 0}])
    assert read is not None and read.bounds == Bounds(5.0, math.inf, 20) and read.types == ["m7i.4xlarge"]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -1, "5", True, [5]])
@pytest.mark.parametrize("key", ["max_usd", "max_hours", "tries"])
def test_a_bound_that_is_no_number_is_one_line(key: str, number: object, home: Path) -> None:
    with pytest.raises(Exit, match=r"demo-1\.json: not a managed job's record") as refused:
        kept(home, bounds={"max_usd": 5.0, "max_hours": 5.0, "tries": 20, key: number})
    assert refused.value.code == 2 and len(str(refused.value.message).splitlines()) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"job": "other-1"},
        {"stack": "../yard"},
        {"nodes": -3},
        {"nodes": 1e300},
        {"began": math.inf},
        {"began": 10**400},
        {"prices": []},
        {"prices": [[1000.0, math.nan]]},
        {"prices": [[-1.0, 3.0]]},
        {"bounds": {"max_usd": 5.0, "tries": 20}},
        {"bounds": {"max_usd": 5.0, "max_hours": None, "tries": None}},
        {"replaced": -5},
        {"first_attempt": "many"},
        {"earlier": -1},
        {"counted_until": math.nan},
        {"zones": "use1-az4"},
        {"zones": ["--force"]},
        {"types": ["../x"]},
        {"types": [3]},
        {"decisions": {}},
        {"decisions": [{"time": 1.0, "text": 3, "usd": 0.0}]},
        {"manager": None},
        {"resume": "yes"},
        {"text": 3},
    ],
)
def test_a_field_of_another_type_is_one_line(changes: dict[str, Any], home: Path) -> None:
    with pytest.raises(Exit, match=r"demo-1\.json: not a managed job's record") as refused:
        kept(home, **changes)
    assert refused.value.code == 2 and len(str(refused.value.message).splitlines()) == 1


# The bounds, by the times and numbers that the head says of a job


@pytest.mark.parametrize(
    "changes",
    [
        {"created": 1e18, "started": None},
        {"created": math.inf, "started": None},
        {"started": 1e18},
        {"paused": math.inf},
        {"created": 1e18, "ended_before": 1.0},
    ],
)
def test_a_job_begins_at_the_latest_when_its_manager_first_sees_it(
    changes: dict[str, Any], home: Path, backend: MemoryBackend
) -> None:
    with backend:
        backend.submit(Submission(job=resolve("smoke", (), 3), nodes=3))
        backend.table = [replace(backend.table[0], **changes)]
        record = start.record_of(CHOSEN, backend, "smoke-1", 3, "")
    later = time.time() + 3 * 3600
    assert record.hours(later) >= 3 and record.usd(later) == pytest.approx(9.0, rel=0.01)
    assert record.bounds.reached(record.usd(later), record.hours(later))
    record.pause(0.0, later)
    assert record.hours(later) == pytest.approx(0.0, abs=0.01), "nor did it end before that"


@pytest.mark.parametrize("created", [math.nan, -math.inf, "soon"])
def test_a_job_without_a_time_is_not_managed(created: Any, home: Path, backend: MemoryBackend) -> None:
    with backend:
        backend.submit(Submission(job=resolve("smoke", (), 3), nodes=3))
        backend.table = [replace(backend.table[0], created=created, started=None)]
        with pytest.raises(Exit, match="smoke-1: its record on the head has times that cannot be"):
            start.record_of(CHOSEN, backend, "smoke-1", 3, "")


@pytest.mark.parametrize("ended", [1.0, -math.inf, math.nan, math.inf])
def test_the_time_that_a_manager_has_seen_stays_counted_whenever_a_job_is_said_to_have_ended(
    ended: float, played: Played
) -> None:
    manager = managed(played, bounds=Bounds(max_hours=2.0))
    record = manager.session.record
    began = time.time() - 3600
    record.began = began
    record.prices = [(began, 3.0)]
    played.script = {3: lambda: played.ends(JobState.CANCELLED, 1, "stopped", by="somebody")}
    manager.run()
    record.save()
    played.change(ended=ended)
    again = start.record_of(replace(CHOSEN, stack="yard"), played.backend, "smoke-1", 3, "")
    assert again.hours(time.time()) == pytest.approx(1.0, rel=0.01)
    assert again.usd(time.time()) == pytest.approx(3.0, rel=0.01)


def test_a_job_that_is_said_to_have_no_node_costs_what_all_cost(backend: MemoryBackend, agreed: list[Record]) -> None:
    with backend:
        backend.submit(Submission(job=resolve("smoke", (), 3), nodes=3))
        backend.table = [replace(backend.table[0], nodes=())]
    assert fab("train", "--resume", "smoke-1", "--managed", "--yes", "--max-usd", "5") == 0
    assert agreed[0].nodes == 3 and agreed[0].prices == [(CREATED, 3.0)]


# Files of this machine that a job.toml of the head or the bucket names


def relocated(played: Played, monkeypatch: pytest.MonkeyPatch, own: str, of_head: str) -> tuple[list[str], list[str]]:
    """Lose a node where the cloud has no room, with another zone allowed; returns the job files by which data are
    brought there, and the places that the stack's file gets."""
    manager = managed(played, zones=["use1-az4"], text=own)
    played.backend.texts["smoke-1"] = of_head
    played.outcomes = [NoRoom("node3: no room")] * 3
    brought: list[str] = []
    places: list[str] = []
    monkeypatch.setattr(relocation, "make", lambda _stack, _facts: played.troubles.clear())
    monkeypatch.setattr(relocation, "equip", lambda *_: None)
    monkeypatch.setattr(relocation, "set_key", lambda _stack, _key, value: places.append(value))
    monkeypatch.setattr(relocation, "checked", lambda _stack: {"cloud": "aws"})
    monkeypatch.setattr(
        "fabfile.managed.relocation.data.body", lambda _c, job, **_: brought.append(Path(job).read_text())
    )
    played.script = {2: lambda: played.lose("node3"), 20: lambda: played.ends()}
    assert manager.run().state == JobState.SUCCEEDED
    for text in decisions(manager):
        assert len(text.splitlines()) == 1
    return brought, places


@pytest.mark.parametrize(
    "lie",
    [
        ("data.source=/etc/passwd",),
        ("data.source=~/.ssh/id_ed25519", "data.train_vocab=300"),
        ("data.encoding=/root/.ssh/keys/tokenizer.json",),
        ("data.source=/etc/*", "data.stream=true"),
    ],
)
def test_a_cluster_moves_with_the_data_that_this_machine_has_named(
    lie: tuple[str, ...], played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = resolve("smoke", (MIRROR,), 3).text
    brought, places = relocated(played, monkeypatch, own, resolve("smoke", (MIRROR, *lie), 3).text)
    assert brought == [own] and places == ["use1-az4"]


@pytest.mark.parametrize(
    ("own", "lie", "why"),
    [
        (True, "data.path=/elsewhere", "smoke-1 has other data than data, which its job file on this machine names"),
        (False, "data.source=/etc/passwd", "no job file of this machine says what the data of smoke-1 are made from"),
    ],
)
def test_a_cluster_does_not_move_with_data_that_this_machine_has_not_named(
    own: bool, lie: str, why: str, played: Played, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = resolve("smoke", (MIRROR, "data.path=data"), 3).text if own else ""
    brought, places = relocated(played, monkeypatch, text, resolve("smoke", (MIRROR, lie), 3).text)
    assert brought == [] and places == [] and played.made == [("node3",)] * 4
    assert f"managed: the nodes do not go to zone use1-az4: {why}\n" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{", "data = 3", "[data]\npath = 3", "a = " + "[" * 10_000])
def test_a_job_file_of_the_head_that_is_none_is_one_line(
    text: str, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = managed(played)
    played.backend.texts["smoke-1"] = text
    played.script = {2: lambda: played.troubles.update(node1=replace(played.nodes()[0], state="gone"))}
    with pytest.raises(Exit, match=r"job\.toml is damaged: it has no checkpoint\.mirror") as refused:
        manager.run()
    assert refused.value.code == 1


@pytest.mark.parametrize("flag", ["--zones", "--types"])
def test_other_places_need_a_job_file_of_this_machine(
    flag: str, backend: MemoryBackend, agreed: list[Record], capsys: pytest.CaptureFixture[str]
) -> None:
    with backend:
        backend.submit(Submission(job=resolve("smoke", (MIRROR,), 3), nodes=3))
    resumed = ("--resume", "smoke-1", "--managed", "--yes", flag, "x")
    assert fab("train", *resumed) == 2 and agreed == []
    error = capsys.readouterr().err
    assert f"{flag}: the data of smoke-1 go along, and no job file of this machine says" in error
    assert len(error.splitlines()) == 1
    assert fab("train", "smoke", *resumed) == 0
    assert agreed[0].text == resolve("smoke", (), 1).text


def test_a_new_jobs_file_is_kept_with_its_record(backend: MemoryBackend, agreed: list[Record]) -> None:
    assert fab("train", "smoke", "data.source=stdlib", "train.steps=7", "--managed", "--yes") == 0
    assert agreed[0].text == resolve("smoke", ("data.source=stdlib", "train.steps=7"), 1).text
    agreed[0].save()
    backend.texts["smoke-1"] = resolve("smoke", ("data.source=/etc/passwd",), 1).text
    assert fab("train", "--resume", "smoke-1", "--managed", "--yes") == 0
    assert agreed[1].text == agreed[0].text
