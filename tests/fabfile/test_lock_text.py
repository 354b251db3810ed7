"""What is shown of Pulumi's stderr: all but its text about a lock, however that is cut into pieces."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from fabfile.stacks.lock_text import Holder, LockText

LOCKED = (
    b"\x1b[31merror: \x1b[0mthe stack is currently locked by 2 lock(s). Either wait for the other process(es) to end "
    b"or delete the lock file with `pulumi cancel`.\n"
    b"  s3://mine/a%20b/.pulumi/locks/organization/trainyard/yard/1.json?region=x: created by ada@far (pid 7) at "
    b"2026-11-23T17:50:00Z\n"
    b"  file:///home/.pulumi/locks/yard/2.json: created by b@c@near (pid 80) at 2026-11-23T18:50:00+01:00\n"
)
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
