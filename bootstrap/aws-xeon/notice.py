"""EC2's notice that it takes a Spot node, two minutes ahead. Its advice of a rebalance is none: the node may stay."""

import json
from collections.abc import Callable
from datetime import datetime
from urllib.error import HTTPError


def notice(ask: Callable[..., str]) -> tuple[datetime | None, str] | None:
    token = ask("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    try:
        told = ask("/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token})
    except HTTPError as error:
        if error.code == 404:
            return None  # nothing is planned
        raise
    return datetime.fromisoformat(json.loads(told)["time"]), "EC2 takes this Spot node"
