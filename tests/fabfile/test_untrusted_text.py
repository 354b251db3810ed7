"""What a node says is shown, never obeyed; what is kept of it is bounded."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
import sshd
from hypothesis import given
from hypothesis import strategies as st
from invoke.context import Context
from invoke.exceptions import Exit

from fabfile import output
from fabfile.remote import command
from fabfile.remote.command import LineSplitter
from fabfile.verbs import shell
from infra import errors
from infra.inventory import to_json

OBEYED = [*map(chr, range(32)), *map(chr, range(0x7F, 0xA0)), *"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"]
ALLOWED = "\n\t"
EVIL = "\x1b]0;title\x07\x1b[2J\x9b31m\x7f\u202egnp.exe\x08\x1b[31mred"


def printed(text: str | bytes, *, terminal: bool = False) -> str:
    """What comes out at the other end of a pipe, or of a terminal."""
    if not terminal:
        file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        output.write(text, file=file)
        return file.buffer.getvalue().decode()
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as screen:
        output.write(text, file=screen)
        return os.read(ours, 100_000).decode(errors="replace").replace("\r\n", "\n")


@given(st.text(st.characters() | st.sampled_from(OBEYED)))
def test_no_control_character_is_ever_written(text: str) -> None:
    for shown in (printed(text.encode(errors="replace").decode()), errors.visible(text), output.visible(text)):
        remaining = output._OURS.sub("", shown)
        assert not set(remaining) & (set(OBEYED) - set(ALLOWED))


@given(st.text(st.characters(exclude_categories=["C"])))
def test_any_other_text_is_written_as_it_is(text: str) -> None:
    assert printed(text) == text and errors.visible(text) == text


def test_escape_sequences_are_shown() -> None:
    assert printed(EVIL) == ("\\x1b]0;title\\x07\\x1b[2J\\x9b31m\\x7f\\u202egnp.exe\\x08\\x1b[31mred")
    assert printed("a\tb\n") == "a\tb\n"
    assert printed(EVIL, terminal=True) == printed(EVIL)


def test_our_own_colours_work_around_what_a_node_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    line = output.prefixed("node1", "\x1b[2Jx\ny")
    assert printed(line).endswith("m[node1]\033[0m \\x1b[2Jx\\ny") and printed(line).startswith("\033[3")
    assert printed(output.colour("\x07bell", "red")) == "\033[31m\\x07bell\033[0m"


def test_a_line_in_place_of_another_is_ours_alone() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    output.write("step 2 \r\x1b[K", file=file, over=True)
    assert file.buffer.getvalue() == b"\r\x1b[Kstep 2 \\r\\x1b[K"


def test_a_cell_cannot_end_its_line() -> None:
    made = output.table([("NODE", "WHY"), ("node1", "x\n\x1b[1Anode2  ready"), ("node2", "y")])
    assert made.splitlines() == ["NODE   WHY", "node1  x\\n\\x1b[1Anode2  ready", "node2  y"]


def test_the_model_s_text_is_data_on_a_pipe_and_harmless_on_a_terminal() -> None:
    data = b"caf\xc3\xa9 \x1b[2J\xff"
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    output.write(data, file=file)
    assert file.buffer.getvalue() == data
    assert printed(data, terminal=True) == "café \\x1b[2J\ufffd"


def test_a_character_in_two_pieces_is_whole_on_a_terminal() -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as screen:
        for byte in "é€".encode():
            output.write(bytes([byte]), file=screen)
        got = b""
        while len(got) < 5:
            got += os.read(ours, 100)
        assert got.decode() == "é€"


def test_an_error_has_no_control_characters_whoever_shows_it() -> None:
    assert str(errors.OperationError(f"node1: bake failed: {EVIL}")) == f"node1: bake failed: {printed(EVIL)}"


def test_a_progress_bar_is_its_last_state() -> None:
    got: list[str] = []
    lines = LineSplitter(got.append)
    for state in range(50_000):
        lines.feed(b"%d of 50000\r" % state)
        assert len(lines._rest) < 100
    lines.feed(b"50000 of 50000\r\nnext\r\n")
    lines.feed(b"", final=True)
    assert got == ["50000 of 50000", "next"]


def test_lines_that_are_passed_on_are_not_kept() -> None:
    count = 0

    def hear(line: str) -> None:
        nonlocal count
        count += 1

    lines = LineSplitter(hear)
    for number in range(40_000):
        lines.feed(b"%063d\n" % number)
        assert sum(map(len, lines._parts)) <= 2 * command.TAIL + 64
    lines.feed(b"", final=True)
    assert count == 40_000 and len(lines.text) == command.TAIL and lines.text.endswith("39999\n")


def test_a_line_without_end_is_cut() -> None:
    got: list[str] = []
    lines = LineSplitter(got.append)
    for _ in range(100):
        lines.feed(b"x" * 10_000)
    lines.feed(b"", final=True)
    assert sum(map(len, got)) == 1_000_000 and max(map(len, got)) <= command.LONGEST_LINE + 10_000


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    sshd.require()
    monkeypatch.setenv("HOME", str(tmp_path))
    made = sshd.Yard(tmp_path, [])
    sshd.keygen(made.identity)
    yield made
    made.stop()


def test_an_output_that_is_needed_whole_has_a_limit(yard: sshd.Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MOST", 1 << 20)
    cluster = yard.cluster(yard.start("127.0.0.2", sshd.free_port("127.0.0.2")).node("node1"))
    result = sshd.run_all(cluster, "yes")["node1"]
    assert not result.ok and result.reason == "node1: printed more than 1 MiB"
    assert sshd.run_all(cluster, "echo fine")["node1"].stdout == "fine\n"


def test_fab_run_shows_what_a_hostile_node_prints(
    yard: sshd.Yard, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster = yard.cluster(yard.start("127.0.0.2", sshd.free_port("127.0.0.2")).node("node1"))
    (tmp_path / "nodes.json").write_text(to_json(cluster))
    with pytest.raises(Exit) as end:
        shell.run.body(
            Context(),
            r"printf 'a\033[2Jb\n10%%\r20%%\r30%%\n'; printf 'c\033]0;t\007\n' >&2; exit 3",
            inventory=str(tmp_path / "nodes.json"),
        )
    assert end.value.code == 3
    out, err = capfd.readouterr()
    assert out == "[node1] a\\x1b[2Jb\n[node1] 30%\n" and "[node1] c\\x1b]0;t\\x07\n" in err
    assert "\x1b" not in out + err


def test_sys_streams_are_what_is_written_to(capsys: pytest.CaptureFixture[str]) -> None:
    output.say(EVIL)
    output.say(EVIL, file=sys.stderr)
    out, err = capsys.readouterr()
    assert out == err == printed(EVIL) + "\n"
