"""What a head may say of a job: an id that is none never becomes a path here, whichever verb reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invoke.exceptions import Exit

from fabfile.backends.base import JobRecord, LogRequest
from fabfile.backends.job_answer import check_job_id, is_job_id
from fabfile.backends.ssh import head as ssh_head
from fabfile.backends.ssh.backend import SshBackend
from fabfile.backends.ssh.start import ask_to_create
from fabfile.remote import node_program
from fabfile.remote.command import Result
from infra.inventory import Node, SshCluster
from node.job import job_table
from node.job.spec import JobSpec

BAD_IDS = ("../../x", "..", ".", "", "/etc/passwd", "a/b-1", "demo", "demo-", "demo-1\n", "-rf-1", "demo-²", 7, None)
GOOD = {"id": "demo-1", "state": "RUNNING", "nodes": ["node1"], "created": 1.0}
CLUSTER = SshCluster(name="test", nodes=(Node(name="node1", private_ip="127.0.0.1", role="head"),))


class LyingHead:
    """A head whose program answers what the test says."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers, self.cluster, self.node = answers, CLUSTER, CLUSTER.head
        self.folder = "code"

    def ask(self, *argv: str, stdin: object = None) -> Any:
        return json.loads(json.dumps(self.answers[argv[0]]))


def backend_of(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> SshBackend:
    backend = SshBackend(CLUSTER)
    monkeypatch.setattr(SshBackend, "_head", LyingHead(answers))
    return backend


@pytest.mark.parametrize("value", BAD_IDS)
def test_what_is_no_id_is_refused(value: object) -> None:
    assert not is_job_id(value)
    with pytest.raises(ValueError, match="NAME-NUMBER"):
        check_job_id(value)


@given(st.text(max_size=30))
def test_an_id_is_one_part_of_a_path(text: str) -> None:
    if is_job_id(f"{text}-1"):
        assert Path(f"runs/{text}-1").parts == ("runs", f"{text}-1")


@pytest.mark.parametrize("name", ["demo-1", "gpt2-124m-openwebtext-12", "My.Run_2-003", "_x-1", ".hidden-1"])
def test_ids_of_real_jobs_are_taken(name: str) -> None:
    assert check_job_id(name) == name


@pytest.mark.parametrize("value", BAD_IDS)
def test_a_record_with_another_id_is_left_out_and_named(
    value: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = backend_of(monkeypatch, jobs=[GOOD, {**GOOD, "id": value}])
    assert [job.id for job in backend.jobs()] == ["demo-1"]
    assert [job.id for job in backend.jobs()] == ["demo-1"]
    said = capsys.readouterr().err
    assert said.count("warning: node1: a job's record is left out") == 1 and len(said.splitlines()) == 1


WRONG_FIELDS: dict[str, object] = {
    "nodes": ["../node1"],
    "away": "node1",
    "created": "yesterday",
    "started": float("inf"),
    "ended": True,
    "paused": 10**400,
    "price_per_hour": None,
    "attempt": 1.5,
    "exit_code": "0",
    "queued": "no",
    "reason": ["a list"],
    "files_on": "a/b",
    "program": {},
}


@pytest.mark.parametrize("key", WRONG_FIELDS)
def test_a_field_of_another_type_is_named(key: str) -> None:
    with pytest.raises(ValueError, match=f"^{key} = "):
        JobRecord.from_record({**GOOD, key: WRONG_FIELDS[key]})


@pytest.mark.parametrize("answer", [{}, None, "demo-1", [None], ["demo-1"], [[]]])
def test_an_answer_that_is_no_list_of_records_is_one_line(answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_of(monkeypatch, jobs=answer)
    try:
        assert backend.jobs() == []
    except Exit as error:
        assert error.code == 1 and str(error.message).startswith("node1: ")


@pytest.mark.parametrize("value", [*BAD_IDS, "other-1"])
def test_a_created_job_has_an_id_and_a_resumed_one_its_own(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = JobSpec(
        name="demo",
        job="",
        runs="runs",
        code="code",
        launcher="mpirun",
        cluster=CLUSTER,
        timeout=60.0,
        resume="demo-1",
    )
    head: Any = LyingHead({"create": {"id": value, "log": 0, "nodes": []}})
    with pytest.raises(Exit, match="node1: create: "):
        ask_to_create(head, spec, {})


@pytest.mark.parametrize("value", BAD_IDS)
def test_a_report_is_written_for_an_id_alone(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_of(monkeypatch)
    answer = Result("node1", 0, stdout=json.dumps({"runs": [{"id": value, "state": {}}]}))
    monkeypatch.setattr(node_program, "run", lambda *_args, **_options: {"node1": answer})
    monkeypatch.setattr(SshBackend, "_fleet", None)
    with pytest.raises(Exit, match="node1: its answer cannot be read"):
        backend.run_data(["latest"])


def test_a_mirror_names_ids_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_of(monkeypatch)
    listed = "demo-1\t3\n../../x\t1\n\ndemo-²\t1\nother-22\n"
    monkeypatch.setattr(SshBackend, "run_program", lambda *_words: listed)
    assert backend.mirrored("s3://bucket/runs") == ["demo-1", "other-22"]


class _Channel:
    """The channel of a head's log, with these lines."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def __enter__(self) -> _Channel:
        return self

    def __exit__(self, *_error: object) -> None: ...

    def settimeout(self, _seconds: float) -> None: ...

    def makefile(self, _mode: str) -> list[str]:
        return self.lines


@pytest.mark.parametrize(
    "event",
    [
        {"state": {**GOOD, "id": "../../x"}},
        {"state": {**GOOD, "id": "other-1"}},
        {"state": "demo-1"},
        {"offset": "1"},
        {"lines": [["too", "few"]]},
        {"lines": 5},
        [],
        "no JSON",
    ],
)
def test_a_log_ends_with_the_record_of_its_own_job(event: object) -> None:
    head: Any = LyingHead({})
    head.start = lambda *_argv: _Channel([event if event == "no JSON" else json.dumps(event)])
    with pytest.raises(Exit, match="node1: its log cannot be read: "):
        list(ssh_head.log_parts(head, LogRequest("demo-1")))


def test_a_record_names_its_own_folder(tmp_path: Path) -> None:
    """On the head: a job's user can write any id into its record, and two folders could then be one job."""
    for name, id_ in (("demo-1", "demo-1"), ("demo-2", "demo-1"), ("demo-3", "../../x")):
        (tmp_path / name).mkdir()
        record = {**GOOD, "id": id_, "state": "SUCCEEDED"}
        (tmp_path / name / "state.json").write_text(json.dumps(record))
    states = {state["id"]: state["state"] for state in job_table.every(tmp_path)}
    assert states == {"demo-1": "SUCCEEDED", "demo-2": "FAILED", "demo-3": "FAILED"}


@pytest.mark.parametrize("name", ["x-" + "9" * 5000, "x-²", "x-1_0", "x- 1", "x-0x1"])
def test_a_folder_without_a_number_does_not_count(name: str) -> None:
    assert job_table.number_of(name) == 0
