"""Move a whole cluster to another zone or type, if the cloud has no room where it is. Its job goes on from its bucket.

The nodes of a stack are in one zone and of one type, for fast collectives: so all of them are made again there. The
job's data are brought as `fab data` does it, which may send files of this machine: so by the job file that was named
here, never by the job.toml of the head or the bucket.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from invoke.config import Config
from invoke.context import Context
from invoke.exceptions import Exit

from fabfile.job_file import setting
from fabfile.managed.places import Place
from fabfile.managed.replacement import NoRoom, NotReplaced, equip, make
from fabfile.managed.session import Session
from fabfile.output import duration
from fabfile.verbs.config import set_key
from fabfile.verbs.data import data
from fabfile.verbs.up import checked


def obstacle(session: Session) -> str:
    """Why the cluster cannot be moved with its job, as one line; empty: it can."""
    record = session.record
    if not record.text:
        return f"no job file of this machine says what the data of {record.job} are made from"
    path = setting(record.text, "data", "path")
    if setting(session.text, "data", "path") != path:
        return f"{record.job} has other data than {path}, which its job file on this machine names"
    return ""


def go(session: Session, place: Place) -> Mapping[str, Any]:
    """Make the cluster in a place, or in the next one that has room, with the job's data from the bucket; returns the
    stack's facts there. Tries, later and later, until a bound is reached. Exit 1 for what no waiting mends."""
    stack, places = session.record.stack, session.places
    if problem := obstacle(session):
        raise Exit(f"the cluster cannot go to {place}: {problem}", code=1)
    facts = _set(stack, place)
    while True:
        try:
            make(stack, facts)
            equip(stack, facts, (), session.text, "")
            break
        except NoRoom as error:
            wait, other = places.no_room()
            session.decide(f"no room: {error}; {f'going to {other}' if other else f'tried again in {duration(wait)}'}")
            facts = _set(stack, other) if other else facts
            time.sleep(wait)
        except NotReplaced as error:
            raise Exit(f"the cluster cannot be made in {place}: {error}", code=1) from None
        if why := session.bound():
            raise Exit(f"{session.record.job} waits in its bucket for a cluster: {why}", code=1)
    with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
        job = Path(folder) / "job.toml"
        job.write_text(session.record.text, encoding="utf-8")
        data.body(Context(Config(lazy=True)), str(job), stack=stack, yes=True)
    places.room()
    return facts


def _set(stack: str, place: Place) -> Mapping[str, Any]:
    """Write the place into the stack's file, and say the price there."""
    set_key(stack, place.key, place.value)
    return checked(stack)
