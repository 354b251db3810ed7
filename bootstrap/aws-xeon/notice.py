"""EC2 announces two minutes ahead that it takes a Spot node. A rebalance recommendation does not count."""

import json
from collections.abc import Callable
from datetime import datetime
from urllib.error import HTTPError


def notice(ask: Callable[..., str]) -> tuple[datetime | None, str] | None:
    token = ask("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    try:
        answer = ask("/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token})
    except HTTPError as error:
        if error.code == 404:
            return None  # nothing is planned
        raise
    return datetime.fromisoformat(json.loads(answer)["time"]), "EC2 takes this Spot node"
