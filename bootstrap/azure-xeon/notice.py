"""Azure's scheduled events that end what runs on this node, announced 30 s ahead for Spot, the others up to 15 minutes.

They are not acknowledged, as Azure would then start them earlier. Freeze, a pause of seconds, is ignored.
"""

import json
from collections.abc import Callable
from datetime import datetime
from email.utils import parsedate_to_datetime

ENDS = {
    "Preempt": "takes this Spot node",
    "Terminate": "deletes this node",
    "Reboot": "reboots this node",
    "Redeploy": "moves this node to another machine",
}
OWN = {"Metadata": "true"}


def notice(ask: Callable[..., str]) -> tuple[datetime | None, str] | None:
    """The earliest end that Azure has announced for this machine: when, None if it has begun, and why; None if there is
    none. `ask`: as in bootstrap/notice.py, whose errors pass."""
    events = json.loads(ask("/metadata/scheduledevents?api-version=2020-07-01", OWN))["Events"]
    events = [event for event in events if event["EventType"] in ENDS]
    if not events:
        return None
    # The list includes the events of other machines.
    name = ask("/metadata/instance/compute/name?api-version=2021-02-01&format=text", OWN).strip().lower()
    found = [
        (parsedate_to_datetime(event["NotBefore"]) if event["NotBefore"] else None, f"Azure {ENDS[event['EventType']]}")
        for event in events
        if name in [resource.lower() for resource in event["Resources"]]
    ]
    return min(found, key=lambda one: one[0].timestamp() if one[0] else 0.0, default=None)
