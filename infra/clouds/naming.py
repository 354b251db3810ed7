"""Names and tags common to all kinds of cluster: the nodes' names, and the tags on all resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from infra.config.settings import Settings

Role = Literal["head", "worker"]

STACK_TAG = "trainyard-stack"
"""The audit finds a stack's resources by this tag, and a sweep removes nothing without it."""
ID_TAG = "trainyard-id"
"""The stack's random id (infra.state.stack_id), which differs between stacks of the same name."""
OWNER_TAG = "trainyard-owner"
MAX_HOURS_TAG = "trainyard-max-hours"
TAGS = (STACK_TAG, OWNER_TAG, MAX_HOURS_TAG)
"""Tags that every cloud resource must have (infra.policy). A stack of a version without ids has no ID_TAG."""


def tags(settings: Settings) -> dict[str, str]:
    """The tags for every cloud resource. No expiry date, as it would change at each `up`."""
    values = (settings.stack, settings.cloud.owner, str(settings.max_hours))
    return {**dict(zip(TAGS, values, strict=True)), **identity(settings)}


def identity(settings: Settings) -> dict[str, str]:
    """The tag with the stack's id; empty for a stack made before there were ids."""
    return {ID_TAG: settings.stack_id} if settings.stack_id else {}


def owns(settings: Settings, tags: Mapping[str, str]) -> bool:
    """Whether tags are of this stack, not of another user's of that name: by its id, or if none is known, its owner."""
    has_id = settings.stack_id and ID_TAG in tags
    key, value = (ID_TAG, settings.stack_id) if has_id else (OWNER_TAG, settings.cloud.owner)
    return tags.get(STACK_TAG) == settings.stack and tags.get(key, value) == value


def unique(stack: str, stack_id: str) -> str:
    """A part of a name that is unique even among stacks of the same name."""
    return f"{stack}-{stack_id}" if stack_id else stack


def node(index: int) -> str:
    """The name of node `index`, counted from 0."""
    return f"node{index + 1}"


def role(index: int) -> Role:
    """The node's role: the first node is the head."""
    return "head" if index == 0 else "worker"
