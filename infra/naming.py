"""What is called the same in every cluster: its nodes, and the tags on all that it is made of."""

from __future__ import annotations

from typing import Literal

from infra.settings import Settings

Role = Literal["head", "worker"]

STACK_TAG = "trainyard-stack"
"""The audit finds a stack's things by it, and a sweep removes nothing that does not carry it."""
OWNER_TAG = "trainyard-owner"
MAX_HOURS_TAG = "trainyard-max-hours"
TAGS = (STACK_TAG, OWNER_TAG, MAX_HOURS_TAG)


def tags(settings: Settings) -> dict[str, str]:
    """What everything in a cloud is tagged with. No date of expiry: it would differ at each `up`."""
    values = (settings.stack, settings.cloud.owner, str(settings.max_hours))
    return dict(zip(TAGS, values, strict=True))


def node(index: int) -> str:
    """The name of node `index`, from 0."""
    return f"node{index + 1}"


def role(index: int) -> Role:
    """The first node is the head."""
    return "head" if index == 0 else "worker"
