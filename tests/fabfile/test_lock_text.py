"""What is shown of Pulumi's stderr: all but its text about a lock, however that is cut into pieces."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabfile.stacks import pulumi_cli
from fabfile.stacks.lock_text import Holder, LockText, in_cloud

LOCKED = (
    b"\x1b[31merror: \x1b[0mthe stack is currently locked by 2 lock(s). Either wait for the other process(es) to end "
    b"or delete the lock file with `pulumi cancel`.\n"
    b"  s3://mine/a%20b/.pulumi/locks/organization/trainyard/yard/1.json?region=x: created by ada@far (pid 7) at "
    b"2026-11-23T17:50:00Z\n"
    b"  file:///home/.pulumi/locks/yard/2.json: created by b@c@near (pid 80) at 2026-11-23T18:50:00+01:00\n"
)
CONFLICT = (
    b"\x1b[31merror: \x1b[0m[409] Conflict: Another update is currently in progress.\n"
    b"To learn more about possible reasons and resolution, visit https://www.pulumi.com/docs/support/\n"
)
UNDER_WAY = """Current stack is yard:
    Owner: acme
    Update in progress:
\tStarted: 3 minutes ago
\tRequested By: ada
    Last updated: 2 days ago (2026-11-21 17:50:00 +0000 UTC)
"""
SINCE = datetime(2026, 11, 23, 17, 50, tzinfo=UTC)


def shown(text: bytes, cuts: list[int]) -> tuple[bytes, list[Holder]]:
    lock, places = LockText(), sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    out = b"".join(lock.passed(text[begin:end]) for begin, end in itertools.pairwise(places))
    return out + lock.rest(), lock.holders


@given(st.lists(st.integers(0, 600)))
def test_a_locks_text_is_kept_back_and_all_else_passes(cuts: list[int]) -> None:
    before, after = b"warning: old\nplugin 10%\rplugin 20%\r", b"error: another\n  one line more\nno end"
    out, holders = shown(before + LOCKED + after, cuts)
    assert out == before + after
    assert holders == [Holder("yard", "ada", "far", 7, SINCE), Holder("yard", "b@c", "near", 80, SINCE)]


@given(st.binary(), st.lists(st.integers(0, 100)))
def test_other_output_passes_as_it_is(text: bytes, cuts: list[int]) -> None:
    assert shown(text, cuts) == (text, [])


def test_a_lock_of_another_form_is_shown_as_it_is() -> None:
    text = LOCKED.replace(b"created by", b"made by")
    assert shown(text, [5, 100]) == (text[text.index(b"\n") + 1 :] + text[: text.index(b"\n") + 1], [])


def test_a_holder_on_another_machine_is_taken_for_alive() -> None:
    line = Holder("yard", "ada", "far.example", 7, SINCE).said(SINCE + timedelta(minutes=12, seconds=5))
    assert line == (
        "stack yard: process 7 of ada on far.example is at work on it since 2026-11-23 17:50:00 UTC (12m ago); "
        "wait for it, or stop it; if it was killed, there: fab recover"
    )


@given(st.lists(st.integers(0, 300)))
def test_pulumi_clouds_refusal_is_kept_back_too(cuts: list[int]) -> None:
    text = b"Updating (yard)\n" + CONFLICT + b"To learn more"
    lock, places = LockText(), sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    out = b"".join(lock.passed(text[begin:end]) for begin, end in itertools.pairwise(places))
    assert out + lock.rest() == b"Updating (yard)\nTo learn more" and lock.is_in_cloud and lock.holders == []


def test_an_advice_without_a_conflict_is_shown() -> None:
    text = CONFLICT.partition(b"\n")[2]
    assert shown(text, [7]) == (text, [])


def test_who_holds_a_stack_in_pulumi_cloud_is_said_if_it_is_known() -> None:
    wait = "wait for it, or stop it; if it was killed: fab recover"
    cloud = "(by Pulumi Cloud, which keeps one update at a time)"
    assert in_cloud("yard", UNDER_WAY) == (f"stack yard: ada is at work on it, begun 3 minutes ago {cloud}; {wait}")
    assert in_cloud("yard", "") == f"stack yard: somebody is at work on it {cloud}; {wait}"


@pytest.mark.parametrize("known", [True, False])
def test_a_conflict_in_pulumi_cloud_ends_a_verb_as_a_lock_does(
    known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "conflict").write_bytes(CONFLICT)
    (tmp_path / "shown").write_text(UNDER_WAY)
    look = f"cat {tmp_path}/shown" if known else "echo 'error: getting stack: 503' >&2; exit 255"
    (tmp_path / "pulumi").write_text(
        f'#!/bin/sh\nif [ "$1" = stack ]; then {look}; exit; fi\ncat {tmp_path}/conflict >&2; exit 255\n'
    )
    (tmp_path / "pulumi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert pulumi_cli.follow(["pulumi", "destroy", "--yes", "--stack", "yard"]) == pulumi_cli.LOCKED
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"stack yard: {'ada' if known else 'somebody'} is at work on it")
