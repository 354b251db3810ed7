"""Names and tags that every kind of cluster uses: its nodes' names, and the tags on all its resources."""

from __future__ import annotations

from typing import Literal

from infra.config.settings import Settings

Role = Literal["head", "worker"]

STACK_TAG = "trainyard-stack"
"""The audit finds a stack's things by it, and a sweep removes nothing that does not carry it."""
ID_TAG = "trainyard-id"
"""The stack's random id (infra.state.stack_id): two people's stacks of one name differ in it."""
OWNER_TAG = "trainyard-owner"
MAX_HOURS_TAG = "trainyard-max-hours"
TAGS = (STACK_TAG, OWNER_TAG, MAX_HOURS_TAG)
"""What everything in a cloud must carry (infra.policy); a stack of a version without ids has no ID_TAG."""


def tags(settings: Settings) -> dict[str, str]:
    """What everything in a cloud is tagged with. No date of expiry: it would differ at each `up`."""
    values = (settings.stack, settings.cloud.owner, str(settings.max_hours))
    return {**dict(zip(TAGS, values, strict=True)), **identity(settings)}


def identity(settings: Settings) -> dict[str, str]:
    """The tag with the stack's id; none for a stack that was made before there were ids."""
    return {ID_TAG: settings.stack_id} if settings.stack_id else {}


def unique(stack: str, stack_id: str) -> str:
    """The part of a name that no other stack has, also one of the same name."""
    return f"{stack}-{stack_id}" if stack_id else stack


def node(index: int) -> str:
    """The name of node `index`, from 0."""
    return f"node{index + 1}"


def role(index: int) -> Role:
    """The first node is the head."""
    return "head" if index == 0 else "worker"
