"""Announce that the cloud is about to take this node back. A service on a cloud's nodes.

notice.py in the folder of the cluster's kind reads that cloud's announcement. Polled every 2 s, as Azure warns a Spot
machine only 30 s ahead. While the announcement lasts there is a record, /run/trainyard/notice.json: {"time", "at",
"why"}: a job's programs read it and stop with a checkpoint, and `fab status` shows it. TRAINYARD_IMDS replaces the
metadata service's host, for tests.
"""

import json
import os
import runpy
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

POLL = 2.0
RECORD = Path(os.environ.get("TRAINYARD_PREFIX", "/")) / "run/trainyard/notice.json"
HOST = os.environ.get("TRAINYARD_IMDS", "http://169.254.169.254")
Notice = tuple[datetime | None, str]  # (when, what); no time: it has begun


def ask(path: str, headers: dict[str, str], method: str = "GET") -> str:
    """An answer of the metadata service, which refuses requests through a proxy."""
    request = Request(HOST + path, headers=headers, method=method)
    with build_opener(ProxyHandler({})).open(request, timeout=5) as response:
        return str(response.read().decode())


def announce(notice: Notice | None) -> None:
    """Write the record and tell whoever is logged in; None removes it, as the cloud has changed its mind."""
    if notice is None:
        RECORD.unlink(missing_ok=True)
        return
    (at, what), now = notice, time.time()
    why = f"{what} at {at.astimezone(UTC):%H:%M:%SZ}" if at else f"{what} now"
    record = {"time": now, "at": at.timestamp() if at else now, "why": why}
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.with_suffix(".new").write_text(json.dumps(record))
    RECORD.with_suffix(".new").replace(RECORD)
    with suppress(OSError, subprocess.SubprocessError):  # not being able to warn the users changes nothing
        print(why, flush=True)
        subprocess.run(["wall", why], check=False, timeout=5)


def main() -> None:
    """Poll for ever. If the service does not answer, the record stays as it is, and each new error is said once."""
    look = runpy.run_path(str(Path(__file__).parent / os.environ["TRAINYARD_CLUSTER"] / "notice.py"))["notice"]
    last: Notice | None = None
    last_error = ""
    while True:
        error_text = ""
        try:
            notice = look(ask)
            if notice != last:
                announce(notice)
                last = notice
        except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
            error_text = f"cannot read the metadata service: {type(error).__name__} {error}"
        if error_text != last_error:
            print(error_text or "the metadata service answers again", file=sys.stderr, flush=True)
            last_error = error_text
        time.sleep(POLL)


main()
