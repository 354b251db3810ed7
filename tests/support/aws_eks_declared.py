"""What the program of aws-eks has declared, as its tests read it."""

from __future__ import annotations

import json
from typing import Any

from program_recorder import STACK_ID, Ran

FULL_NAME = f"trainyard-aws-eks-{STACK_ID}"
NAME = f"{FULL_NAME}-eks"
"""The cluster's, to EKS."""


def statements(ran: Ran, name: str, key: str) -> list[dict[str, Any]]:
    """The statements of a policy in a resource's input."""
    found: list[dict[str, Any]] = json.loads(ran[name].inputs[key])["Statement"]
    return found


def objects(ran: Ran) -> dict[str, Any]:
    """What is put into the cluster, by kind and name."""
    listed = json.loads(ran["objects"].inputs["objects"])
    found = {f"{one['kind']}/{one['metadata']['name']}": one for one in listed}
    assert len(found) == len(listed)
    return found
