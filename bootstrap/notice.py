"""Say so when the cloud is about to take this node, as far ahead as the cloud says it. A service of a cloud's nodes.

Which words a cloud has for it is in the folder of its kind: notice.py there. It is asked every 2 s, as Azure leaves a
Spot machine 30 s. The record, /run/trainyard/notice.json: {"time", "at", "why"}, is there as long as the notice is: a
job's programs read it and stop with a checkpoint, and `fab status` shows it. TRAINYARD_IMDS stands in for the metadata
service's host.
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
Notice = tuple[datetime | None, str]  # without a time: it has begun


def ask(path: str, headers: dict[str, str], method: str = "GET") -> str:
    """The metadata service, past every proxy, as it wants it."""
    request = Request(HOST + path, headers=headers, method=method)
    with build_opener(ProxyHandler({})).open(request, timeout=5) as response:
        return str(response.read().decode())


def tell(notice: Notice | None) -> None:
    if notice is None:
        RECORD.unlink(missing_ok=True)
        return
    at, what = notice
    why = f"{what} at {at.astimezone(UTC):%H:%M:%SZ}" if at else f"{what} now"
    now = time.time()
    record = {"time": now, "at": at.timestamp() if at else now, "why": why}
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.with_suffix(".new").write_text(json.dumps(record))
    RECORD.with_suffix(".new").replace(RECORD)
    with suppress(OSError, subprocess.SubprocessError):  # that nobody is logged in changes nothing
        print(why, flush=True)
        subprocess.run(["wall", why], check=False, timeout=5)


def main() -> None:
    look = runpy.run_path(str(Path(__file__).parent / os.environ["TRAINYARD_CLUSTER"] / "notice.py"))["notice"]
    last: Notice | None = None
    complaint = ""
    while True:
        said = ""
        try:
            notice = look(ask)
            if notice != last:
                tell(notice)
                last = notice
        except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
            said = f"the metadata service cannot be asked: {type(error).__name__} {error}"
        if said != complaint:
            print(said or "the metadata service answers again", file=sys.stderr, flush=True)
            complaint = said
        time.sleep(POLL)


main()
