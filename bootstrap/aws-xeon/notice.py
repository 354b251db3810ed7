"""EC2 announces two minutes ahead that it takes a Spot node, and weeks ahead that it ends or reboots one for
maintenance: of that only what begins within 15 minutes counts. A rebalance recommendation does not count.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from urllib.error import HTTPError


def notice(ask: Callable[..., str]) -> tuple[datetime | None, str] | None:
    """The earliest end that EC2 has announced: when, and why; None if there is none. `ask`: as in bootstrap/notice.py,
    whose errors pass, but for 404: nothing is planned."""
    token = ask("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")

    def planned(path: str) -> str:
        try:
            return ask(f"/latest/meta-data/{path}", {"X-aws-ec2-metadata-token": token})
        except HTTPError as error:
            if error.code == 404:
                return ""  # nothing is planned
            raise

    found = []
    if action := planned("spot/instance-action"):
        found.append((datetime.fromisoformat(json.loads(action)["time"]), "EC2 takes this Spot node"))
    for event in json.loads(planned("events/maintenance/scheduled") or "[]"):
        at = parsedate_to_datetime(event["NotBefore"])
        if event["State"] == "active" and at - datetime.now(UTC) < timedelta(minutes=15):
            found.append((at, f"EC2 maintains this node ({event['Code']})"))
    return min(found, default=None)
