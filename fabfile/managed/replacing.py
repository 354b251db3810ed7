"""Replace the nodes that a managed job has lost, or, without room for them, take the whole cluster to another place."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from invoke.exceptions import Exit

from fabfile.backends.base import JobRecord, JobState
from fabfile.managed import relocation
from fabfile.managed.replacement import NoRoom, NotReplaced, equip, make_again
from fabfile.managed.session import Session
from fabfile.managed.watch import Seen
from fabfile.output import duration

_LEASE = 1800.0
"""The lease, in seconds, while nodes are made: a cloud takes minutes, and the head hears nothing from us."""
_LEAVING = 90.0
"""Seconds for a job to leave a node before that is replaced: a checkpoint, and the start of the next attempt."""
_STOPPING = 600.0
"""Seconds for a job to stop with a checkpoint before all of its nodes are replaced."""
_POLL = 1.0


def replace(
    session: Session,
    job: JobRecord | None,
    lost: Mapping[str, str],
    seen: Collection[Seen],
    *,
    is_silent: bool = False,
) -> bool:
    """Replace these nodes, with the reason for each, and bring them code and data. `job`: that of the head, if it runs;
    it goes on meanwhile with the other nodes; an elastic one then takes the new ones in. `is_silent`: the head does not
    answer, and is not asked to. Returns whether the cluster is a new one elsewhere."""
    record, names = session.record, ", ".join(lost)
    session.decide(f"to be replaced: {'; '.join(f'{name}: {why}' for name, why in lost.items())}")
    is_running = job is not None and job.state == JobState.RUNNING
    joins = is_running and session.elastic
    if job is not None and is_running and not joins:
        # What has ended, or is cut off, the job's supervisor leaves by itself.
        _leave(session, {node.name for node in seen if node.state in ("ready", "down")} & set(lost) & set(job.nodes))
    record.replaced += 1
    record.save()
    if not is_silent:
        session.tell_head(_LEASE)
    began, moved = time.monotonic(), False
    try:
        make_again(record.stack, session.facts, [*lost], [node.name for node in seen if node.state == "gone"])
        troubled = {node.name for node in seen if not node.is_well} - set(lost) - {session.head_name}
        # To what joins a running job its head brings code and data; two who do that would be in each other's way.
        to_bring = () if joins else lost
        equip(record.stack, session.facts, to_bring, session.text, session.head.code, troubled)
    except NoRoom as error:
        record.replaced -= 1  # to wait for room is no try: money and time bound it
        moved = _no_room(session, job, str(error))
    except NotReplaced as error:
        session.replacing.begin()
        session.decide(f"{names} not replaced, tried again in {duration(session.replacing.seconds)}: {error}")
    else:
        session.replacing.done()
        session.places.room()
        what = "" if joins else ", with code and data,"
        then = f", to join {record.job}" if joins else ""
        session.decide(f"{names} replaced{what} in {time.monotonic() - began:.0f} s{then}")
    session.connect_anew()
    return moved


def _leave(session: Session, names: Collection[str]) -> None:
    """Let the job leave nodes that still answer, with a checkpoint. They are replaced even if it does not."""
    if not names or session.head_name in names:
        return
    session.record.resized += 1
    session.decide(f"{session.record.job} goes on without {', '.join(sorted(names))}, from a checkpoint")
    session.head.order(without=names)
    deadline = time.monotonic() + _LEAVING
    while time.monotonic() < deadline:
        time.sleep(_POLL)
        now = session.head.job()
        if now is None or now.state != JobState.RUNNING or not set(now.nodes) & set(names):
            return


def _no_room(session: Session, job: JobRecord | None, why: str) -> bool:
    """The cloud has no room: wait, or take all nodes to the next place that the user has allowed, which is True."""
    record = session.record
    wait, place = session.places.no_room()
    obstacle = relocation.obstacle(session) if place else ""
    if obstacle:
        session.decide(f"the nodes do not go to {place}: {obstacle}")
    if place is None or obstacle:
        session.replacing.begin(wait)
        rest = "" if job is None else f"; until then {job.id} goes on with the nodes that are left"
        session.decide(f"no room: {why}; tried again in {duration(session.replacing.seconds)}{rest}")
        return False
    session.decide(f"no room: {why}; all nodes go to {place}, and {record.job} with them")
    if job is not None:
        _stop_and_wait(session)
    session.facts = relocation.go(session, place)
    record.prices.append((time.time(), session.hourly_usd()))
    return True


def _stop_and_wait(session: Session) -> None:
    """Stop the job with a checkpoint, which is then in the bucket."""
    session.head.stop()
    deadline = time.monotonic() + _STOPPING
    while time.monotonic() < deadline:
        time.sleep(_POLL)
        now = session.head.job()
        if now is None or now.state.is_final:
            return
    raise Exit(f"{session.record.job} does not stop: its nodes stay where they are", code=1)
