"""Property paths and conditions for the rows of the rule tables.

A path looks like `storageProfile.osDisk.deleteOption`. `dataDisks[]` means each item of a list; a last step with `?` is
checked only if it is given; the empty path is the value itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from infra.policy.rule import Parts, Resource

Allowed = Callable[[Any], bool]
"""Whether a value (None: not given) is allowed. Raises UndecidedError if that depends on an unknown value."""
Problem = Callable[[Any], str | None]
"""What is wrong with a part of a resource, or None."""


def values(value: Any, path: str) -> Iterator[Any]:
    """The values at a path; None for a missing one, nothing for an empty list."""
    if not path:
        yield value
        return
    step, _, rest = path.partition(".")
    name = step.rstrip("[]?")
    found = None if value is None else value.get(name)
    if step.endswith("[]"):
        for item in () if found is None else found:
            yield from values(item, rest)
    elif found is not None or not step.endswith("?"):
        yield from values(found, rest)


def value(of: Any, path: str) -> Any:
    """The value at a path without lists."""
    return next(values(of, path))


def at(*paths: str) -> Parts:
    """The parts of a rule: the values at these paths, each checked separately."""
    return lambda resource: (found for path in paths for found in values(resource.props, path))


itself = at("")
"""The only part is the resource itself."""


def must(path: str, allowed: Allowed, message: str) -> Problem:
    """A check of a part's property: returns `message` if it is not allowed, with the property for `{value}`."""

    def problem(part: Any) -> str | None:
        found = value(part, path)
        return None if allowed(found) else message.format(value=found)

    return problem


def first(*problems: Problem) -> Problem:
    """A check that returns the first problem of several."""
    return lambda part: next(filter(None, (problem(part) for problem in problems)), None)


def each_beside(missing: str, *problems: Problem) -> Callable[[Sequence[Resource]], str | None]:
    """A check that at least one resource is beside it, and that none of those has one of the problems."""
    judge = first(*problems)
    return lambda beside: next(filter(None, (judge(one.props) for one in beside)), None) if beside else missing


def one_beside(inside: str, wanted: Mapping[str, Allowed], missing: str) -> Callable[[Sequence[Resource]], str | None]:
    """A check that some resource beside it has, at the path `inside`, a value with all the wanted properties."""

    def problem(beside: Sequence[Resource]) -> str | None:
        found = (item for other in beside for item in values(other.props, inside))
        fits = any(all(allowed(value(item, path)) for path, allowed in wanted.items()) for item in found)
        return None if fits else missing

    return problem


# --- conditions ---


def is_on(value: Any) -> bool:
    """True, or the text "true", as launch templates have it."""
    return value is not None and (value is True or value == "true")


def is_off(value: Any) -> bool:
    """Explicitly false, not by the provider's default."""
    return value is not None and (value is False or value == "false")


def not_off(value: Any) -> bool:
    return not is_off(value)


def is_given(value: Any) -> bool:
    """Declared, maybe with an unknown value."""
    return value is not None


def is_absent(value: Any) -> bool:
    return value is None


def is_empty(value: Any) -> bool:
    """Missing, or an empty list."""
    return value is None or not list(value)


def holds_some(value: Any) -> bool:
    return not is_empty(value)


def equals(*wanted: Any) -> Allowed:
    return lambda value: value is not None and any(value == one for one in wanted)


def same(*wanted: str) -> Allowed:
    """One of these texts, ignoring case, as Azure compares them."""
    return lambda value: value is not None and str(value).lower() in [one.lower() for one in wanted]


def at_least(wanted: int) -> Allowed:
    return lambda value: value is not None and int(value) >= wanted


def matches(pattern: str) -> Allowed:
    """The whole text matches."""
    return lambda value: re.fullmatch(pattern, str(value)) is not None


def absent_or(allowed: Allowed) -> Allowed:
    return lambda value: value is None or allowed(value)
