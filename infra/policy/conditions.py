"""Property paths and conditions for the rows of the rule tables.

A path looks like `storageProfile.osDisk.deleteOption`. `dataDisks[]` means each item of a list; a last step with `?` is
checked only if it is given; the empty path is the value itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.policy.rule import DeclaredResource, Parts, Problem


def values(value: Any, path: str) -> Iterator[Any]:
    """The values at a path; None for a missing one, nothing for an empty list."""
    if not path:
        yield value
        return
    step, _, rest = path.partition(".")
    found = None if value is None else value.get(step.rstrip("[]?"))
    if step.endswith("[]"):
        for item in () if found is None else found:
            yield from values(item, rest)
    elif found is not None or not step.endswith("?"):
        yield from values(found, rest)


def several(value: Any) -> list[Any]:
    """A property as a list: it may be one value, a list, or missing."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def at(*paths: str) -> Parts:
    """The parts of a rule: the values at these paths, each checked separately."""
    return lambda resource: (found for path in paths for found in values(resource.props, path))


itself = at("")
"""The only part is the resource itself."""


@dataclass(frozen=True)
class Condition:
    """Whether a value (None: not given) is allowed. Raises UndecidedError if that depends on an unknown value."""

    text: str
    """What the property must be, for the message."""
    allows: Callable[[Any], bool]


def must(path: str, condition: Condition, message: str = "") -> Problem:
    """A check of a part's property. Its message is by default the path with the condition's text; in another one
    `{value}` is the property."""

    def problem(part: Any) -> str | None:
        found = next(values(part, path))
        return None if condition.allows(found) else (message or f"{path} {condition.text}").format(value=found)

    return problem


def first(*problems: Problem) -> Problem:
    """A check that returns the first problem of several."""
    return lambda part: next(filter(None, (problem(part) for problem in problems)), None)


def each_beside(missing: str, *problems: Problem) -> Problem:
    """A check that at least one resource is beside it, and that none of those has one of the problems."""

    def problem(beside: Sequence[DeclaredResource]) -> str | None:
        found = (f"{other.name}: {what}" for other in beside if (what := first(*problems)(other.props)))
        return next(found, None) if beside else missing

    return problem


def one_beside(inside: str, wanted: Mapping[str, Condition], missing: str) -> Problem:
    """A check that some resource beside it has, at the path `inside`, a value with all the wanted properties."""

    def problem(beside: Sequence[DeclaredResource]) -> str | None:
        found = (item for other in beside for item in values(other.props, inside))
        fits = any(all(one.allows(next(values(item, path))) for path, one in wanted.items()) for item in found)
        return None if fits else missing

    return problem


# --- conditions ---

# Launch templates have "true" and "false" as text. Not given is neither: the provider's default may change.
is_on = Condition("must be true", lambda value: value is not None and (value is True or value == "true"))
is_off = Condition("must be false", lambda value: value is not None and (value is False or value == "false"))
not_off = Condition("must not be false", lambda value: not is_off.allows(value))
is_given = Condition("must be given", lambda value: value is not None)  # its value may be unknown
is_absent = Condition("must not be set", lambda value: value is None)
is_empty = Condition("must be empty", lambda value: value is None or not list(value))
holds_some = Condition("must not be empty", lambda value: not is_empty.allows(value))


def equals(*wanted: Any) -> Condition:
    """One of these values."""
    text = f"must be {' or '.join(map(str, wanted))}"
    return Condition(text, lambda value: value is not None and any(value == one for one in wanted))


def same(*wanted: str) -> Condition:
    """One of these texts, ignoring case, as Azure compares them."""
    text = f"must be {' or '.join(wanted)}"
    return Condition(text, lambda value: value is not None and str(value).lower() in [one.lower() for one in wanted])


def includes(*wanted: str) -> Condition:
    """A list that has all of these."""
    return Condition(f"must have {', '.join(wanted)}", lambda value: value is not None and {*wanted} <= {*value})


def at_least(wanted: int) -> Condition:
    """A number that is not smaller."""
    return Condition(f"must be {wanted} or more", lambda value: value is not None and int(value) >= wanted)


def matches(pattern: str) -> Condition:
    """The whole text matches."""
    return Condition(f"must match {pattern}", lambda value: re.fullmatch(pattern, str(value)) is not None)


def absent_or(other: Condition) -> Condition:
    """Not given, or what the other condition allows."""
    return Condition(f"{other.text}, if it is given", lambda value: value is None or other.allows(value))
