"""A managed job's manager on the job's head: `python -m fabfile.managed.service RUN_DIR`.

node/job/manager_service.py starts it as a service; it uses the head's own SSH key, which every node of the cluster
knows. What it says is in the job's log and in the service's journal.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit

from fabfile import backends
from fabfile.backends.base import Backend, Unreachable
from fabfile.backends.ssh.head import lost_connections
from fabfile.managed.asked import Asked
from fabfile.managed.record import Record
from fabfile.managed.session import Session
from fabfile.managed.start import Options, hold, record_of
from fabfile.output import say
from fabfile.stacks.pulumi_cli import ROOT
from fabfile.verbs.train import resubmission
from node.job import files
from node.job.manager_service import FOLDER, SETTINGS, over

_BOOT_SECONDS, _AGAIN = 300.0, 3.0


def main(argv: list[str]) -> int:
    """Hold the job to its end. 0 if there is nothing more to do, however the job has ended; otherwise systemd starts
    the service again."""
    run_dir = Path(argv[0])
    os.utime(ROOT)  # so that this version of the code stays on the node
    try:
        _managed(run_dir, files.read(run_dir / FOLDER / SETTINGS))
        code, text = 0, ""
    except Exit as error:
        code, text = int(error.code or 1), str(error.message)
        say(text)
    except KeyboardInterrupt:  # the service is stopped: the job goes on, and may be managed from elsewhere
        return 0
    over(run_dir, code, text)
    return 0


def _managed(run_dir: Path, settings: dict[str, Any]) -> None:
    """Hold the job to its end. Exit if that cannot be done."""
    chosen, facts = Options(**settings["options"]), settings["facts"]
    machines = Asked(run_dir, facts)
    record = _when_it_answers(machines, lambda backend: record_of(chosen, backend, run_dir.name, settings["nodes"]))

    def session() -> Session:
        return Session(record, facts, machines, chosen.elastic)

    resubmit = resubmission(record.bounds.tries, elastic=chosen.elastic)
    if settings["resume"]:  # once, not when the service comes back
        record.resume = True
        record.save()
        files.write(run_dir / FOLDER / SETTINGS, {**settings, "resume": False})
    hold(session, record, resubmit, resume=False)


def _when_it_answers(machines: Asked, ask: Callable[[Backend], Record]) -> Record:
    """What the head says, as soon as it does: it may have just booted."""
    until = time.monotonic() + _BOOT_SECONDS
    while True:
        try:
            with lost_connections(), backends.of(machines.cluster()) as backend:
                return ask(backend)
        except (Exit, Unreachable) as error:
            if time.monotonic() > until:
                raise TimeoutError(f"the head does not answer: {error}") from None  # systemd starts the service again
            say(f"tried again: {getattr(error, 'message', None) or error}")
            time.sleep(_AGAIN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
