"""A job's log: rotated without a lost line, read from its end, and whole lines only, whatever a full disk has cut."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.job import files, job_table, log, rank_wrapper
from node.job.log_reader import LogReader

ALL = log.Wanted("", 0.0)


def written(path: Path, count: int, *, file_bytes: int = log.FILE_BYTES, ranks: int = 1) -> log.Log:
    """A log of `count` lines, `line 0` to `line N`, one a second from second 1000 on, of its ranks in turn."""
    made = log.Log(path, "node1", file_bytes=file_bytes)
    for number in range(count):
        made.add(1000.0 + number, "node1", str(number % ranks), f"line {number}")
    return made


def texts(path: Path, offset: int = 0, wanted: log.Wanted = ALL) -> list[str]:
    """The text of all lines from an offset on, read as `fab logs` does."""
    found: list[str] = []
    while True:
        lines, offset = log.read(path, offset, wanted)
        if not lines:
            return found
        found += [line[3] for line in lines]


def test_a_log_is_rotated_and_read_as_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    made = written(path, 60, file_bytes=300)
    rotated = [part for part in log.parts(path) if part.path != path]
    assert len(rotated) == log.KEPT, "old files go"
    assert all(part.size < 400 for part in log.parts(path))
    kept = texts(path)
    assert kept[-1] == "line 59" and kept == [f"line {number}" for number in range(60 - len(kept), 60)]
    # An offset stays what it is while the file that it points into is renamed.
    _, offset = log.read(path, 0, ALL)
    made.add(2000.0, "node1", "0", "later")
    for number in range(12):
        made.add(2001.0 + number, "node1", "0", f"more {number}")
    assert texts(path, offset) == ["later", *(f"more {number}" for number in range(12))]


def test_what_was_dropped_is_left_out_for_a_reader_that_was_away(tmp_path: Path) -> None:
    path = tmp_path / "log"
    made = written(path, 3)
    _, offset = log.read(path, 0, ALL)
    os.close(made._file)
    written(path, 100, file_bytes=200)
    lines, after = log.read(path, offset, ALL)
    assert lines[0][3] != "line 0" and lines[-1][3] == "line 99" and after == log.end(path)


@given(st.integers(0, 40), st.integers(0, 45), st.integers(1, 3), st.integers(40, 2000), st.binary(max_size=40))
def test_the_tail_is_the_last_wanted_lines(
    tmp_path_factory: pytest.TempPathFactory, count: int, wanted: int, ranks: int, file_bytes: int, torn: bytes
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    written(path, count, file_bytes=file_bytes, ranks=ranks)
    with path.open("ab") as file:
        file.write(torn.replace(b"\n", b""))  # a line that is still being written
    there = texts(path, wanted=log.Wanted("0", 0.0))
    expected = there[len(there) - wanted :] if wanted < len(there) else there
    assert texts(path, log.tail(path, wanted, log.Wanted("0", 0.0)), log.Wanted("0", 0.0)) == expected


def test_the_tail_of_a_long_log_is_read_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    written(path, 1)
    with path.open("ab") as file:
        for number in range(200_000):
            file.write(b"2000.000 node1 0 " + b"x" * 100 + b" %d\n" % number)
    looked: list[int] = []
    real = log.parsed

    def counting(raw: bytes) -> list[str] | None:
        looked.append(len(raw))
        return real(raw)

    monkeypatch.setattr(log, "parsed", counting)
    offset = log.tail(path, 10, ALL)
    assert sum(looked) < 5000, "not the 24 MB before them"
    lines, _ = log.read(path, offset, ALL)
    assert [line[3][-6:] for line in lines] == [str(number) for number in range(199_990, 200_000)]
    assert len(log.read(path, 0, ALL)[0]) == log.BATCH, "nor is all of it held at once"


def test_a_line_that_a_full_disk_has_cut_stops_no_reader(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        "10\n1000.000 node1 0 good\n10x.000 node1 0 torn\n\n1001.000 node1\n1002.000 node1 0 end\n"
    )
    assert texts(tmp_path / "log") == ["good", "end"]
    assert log.tail(tmp_path / "log", 1, ALL) == (tmp_path / "log").read_text().index("1002")


def test_a_ranks_log_is_rotated_without_a_lost_line(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    wrapper, lines = rank_wrapper.RankLog(path, file_bytes=500), LogReader(path)
    seen: list[str] = []
    for number in range(200):
        wrapper.line(f"line {number}")
        if number % 7 == 0:
            seen += [text for _, text in lines.new()]
    for _ in range(2):  # the old file to its end, then the new one
        seen += [text for _, text in lines.new()]
    assert seen == [f"line {number}" for number in range(200)]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rank-0.log"]
    assert path.stat().st_size <= 600


def test_a_ranks_line_without_a_whole_time_ends_no_job(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"100.000 good\n10")
    lines = LogReader(path)
    assert lines.new() == [(100.0, "good")]
    with path.open("ab") as file:
        file.write(b"\n\xff\xfe cut\n102.500 next\n")
    assert lines.new() == [(100.0, "10"), (100.0, "\ufffd\ufffd cut"), (102.5, "next")]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"id": "a-2"}', "\x00\x00\x00"])
def test_one_damaged_record_is_that_jobs_alone(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table, "is_active", lambda job: False)
    for name in ("a-1", "a-2", "a-3"):
        (tmp_path / name).mkdir()
        state = {"id": name, "state": "SUCCEEDED", "reason": "", "nodes": ["node1"], "created": time.time() - 60}
        (tmp_path / name / "state.json").write_text(json.dumps(state))
    (tmp_path / "a-2/state.json").write_text(text)
    found = {state["id"]: state for state in job_table.every(tmp_path)}
    assert [found[name]["state"] for name in ("a-1", "a-2", "a-3")] == ["SUCCEEDED", "FAILED", "SUCCEEDED"]
    assert "damaged" in found["a-2"]["reason"]
    assert job_table.in_the_way(tmp_path, {"node1"}) == [] and job_table.take(tmp_path, "a") == "a-4"


def test_a_record_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: (order.append("fsync"), sync(file))[1])
    monkeypatch.setattr(Path, "replace", lambda path, target: (order.append("rename"), replace(path, target))[1])
    files.write(tmp_path / "state.json", {"state": "RUNNING"})
    assert order == ["fsync", "rename"]


def test_a_log_is_read_back_by_offset_rank_and_time_without_half_a_line(tmp_path: Path) -> None:
    written = log.Log(tmp_path / "log", "node1")
    for when, rank in ((100.0, "0"), (200.0, "1"), (300.0, "0")):
        written.add(when, "node2", rank, f"line {when:.0f}")
    lines, offset = log.read(tmp_path / "log", 0, log.Wanted("", 0.0))
    assert [line[3] for line in lines] == ["line 100", "line 200", "line 300"]
    with (tmp_path / "log").open("a") as file:
        file.write("400.000 node3 2 hal")
    assert log.read(tmp_path / "log", offset, log.Wanted("", 0.0)) == ([], offset)
    with (tmp_path / "log").open("a") as file:
        file.write("f\n")
    assert log.read(tmp_path / "log", offset, log.Wanted("", 0.0))[0] == [["400.000", "node3", "2", "half"]]
    assert [line[3] for line in log.read(tmp_path / "log", 0, log.Wanted("0", 150.0))[0]] == ["line 300"]


def test_lines_that_a_full_disk_refuses_are_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, real, full = log.Log(tmp_path / "log", "node1"), os.write, [True]

    def write(file: int, data: bytes) -> int:
        if full:
            full.pop()
            raise OSError(28, "No space left on device")
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
    written.say("first")
    assert (tmp_path / "log").read_text() == ""
    written.say("second")
    assert [line.split(" ", 3)[3] for line in (tmp_path / "log").read_text().splitlines()] == ["first", "second"]
