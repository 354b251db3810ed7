"""Who owns a resource: two users may have stacks of one name, and neither may remove the other's resources.

A stack's name is shipped with the checkout (`aws-xeon`), and its state is its user's alone, so names do not tell two
clusters in one account apart. Each stack therefore has a random id (stack_id.py), which is in the tags of all that
it makes and in every name that must be unique. What carries another id, or no id and another owner, is somebody else's:
it is listed, and never removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.clouds.naming import ID_TAG, OWNER_TAG, STACK_TAG


@dataclass(frozen=True)
class Location:
    """One place in a cloud where a stack has been."""

    cloud: str
    """Its name, as in infra.config.kinds."""
    region: str
    account: str
    """The AWS account, or the Azure subscription; empty: the one that the credentials are for."""
    profile: str = ""
    """The AWS profile that it was made with; empty: the environment's credentials."""

    @staticmethod
    def read(raw: Mapping[str, Any]) -> Location:
        return Location(
            cloud=str(raw.get("cloud", "")),
            region=str(raw.get("region", "")),
            account=str(raw.get("account", "")),
            profile=str(raw.get("profile", "")),
        )


@dataclass(frozen=True)
class Claim:
    """What one user may call their own of what carries a stack's name."""

    stack: str
    owner: str
    """The key `owner` of the stack's file."""
    ids: frozenset[str] = frozenset()
    """The id in the state, and the one that the user's own record has for this state."""
    locations: tuple[Location, ...] = field(default=())
    """Everywhere that the stack has ever been."""

    def is_of_stack(self, tags: Mapping[str, str]) -> bool:
        """Whether these tags are of a stack of this name, of any owner."""
        return tags.get(STACK_TAG) == self.stack

    def whose(self, tags: Mapping[str, str]) -> str:
        """Who owns a resource with these tags, in words; empty: the user.

        The id decides: two people who share a state share its id, whatever `owner` each of them has set. Without an id
        (made by a version of Trainyard that had none) the owner does.
        """
        found, owner = tags.get(ID_TAG, ""), tags.get(OWNER_TAG, "")
        if found:
            return "" if found in self.ids else f"{owner or 'somebody else'}, stack id {found}"
        return "" if owner in ("", self.owner) else owner
