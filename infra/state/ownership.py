"""Who owns a resource: two users may have stacks of one name, and neither may remove the other's resources.

Stack names are fixed in the checkout (`aws-xeon`) and each user has their own state, so two clusters in one account may
have the same name. Each stack therefore has a random id (stack_id.py) in the tags of its resources and in every name
that must be unique. A resource with another id, or with no id and another owner, is listed, and never removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.clouds.naming import ID_TAG, OWNER_TAG, STACK_TAG


@dataclass(frozen=True)
class Location:
    """A place in a cloud where a stack has been."""

    cloud: str
    """The cloud's name, as in infra.config.kinds."""
    region: str
    account: str
    """AWS account or Azure subscription; empty: that of the credentials."""
    profile: str = ""
    """AWS profile with which the stack was made; empty: the environment's credentials."""

    @staticmethod
    def read(raw: Mapping[str, Any]) -> Location:
        """From the dictionary form that states and records have; missing entries are empty."""
        return Location(*(str(raw.get(key, "")) for key in ("cloud", "region", "account", "profile")))


@dataclass(frozen=True)
class Claim:
    """What the user owns among the resources with a stack's name."""

    stack: str
    owner: str
    """The key `owner` in the stack's file."""
    ids: frozenset[str] = frozenset()
    """The id in the state, and the one in the user's own record for this state."""
    locations: tuple[Location, ...] = field(default=())
    """Every place where the stack has been."""

    def is_of_stack(self, tags: Mapping[str, str]) -> bool:
        """Whether these tags have the stack's name, whoever owns it."""
        return tags.get(STACK_TAG) == self.stack

    def whose(self, tags: Mapping[str, str]) -> str:
        """Who else owns a resource with these tags, in words; empty if the user does.

        The id decides: people who share a state share its id, whatever `owner` each has set. Without an id (on what an
        early version of Trainyard made) `owner` decides.
        """
        found, owner = tags.get(ID_TAG, ""), tags.get(OWNER_TAG, "")
        if found:
            return "" if found in self.ids else f"{owner or 'somebody else'}, stack id {found}"
        return "" if owner in ("", self.owner) else owner
