"""What the rows of the rule tables are made of: where a property stands, and what its value must be.

A path is written `storageProfile.osDisk.deleteOption`. `dataDisks[]` is each item of a list; a last step with `?` is
looked at only where it is given; the empty path is the value itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from infra.policy.rule import Parts, Resource

Allowed = Callable[[Any], bool]
"""Whether a value (None: not given) is allowed. Raises UndecidedError where that depends on an unknown value."""
Problem = Callable[[Any], str | None]
"""What is wrong with a part of a resource; None where nothing is."""


def values(value: Any, path: str) -> Iterator[Any]:
    """What stands at the path below a value; None where nothing does, and nothing for an empty list."""
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
    """The one value at a path without lists."""
    return next(values(of, path))


def at(*paths: str) -> Parts:
    """The parts of a rule: what stands at these paths of a resource, each judged on its own."""
    return lambda resource: (found for path in paths for found in values(resource.props, path))


itself = at("")
"""The one part is the resource."""


def must(path: str, allowed: Allowed, message: str) -> Problem:
    """The message where the property of a part is not as it must be; `{value}` in it is what the property is."""

    def problem(part: Any) -> str | None:
        found = value(part, path)
        return None if allowed(found) else message.format(value=found)

    return problem


def first(*problems: Problem) -> Problem:
    """The first of several problems that a part has."""
    return lambda part: next(filter(None, (problem(part) for problem in problems)), None)


def each_beside(missing: str, *problems: Problem) -> Callable[[Sequence[Resource]], str | None]:
    """There must be a resource beside it, and none of those may have one of the problems."""
    judge = first(*problems)
    return lambda beside: next(filter(None, (judge(one.props) for one in beside)), None) if beside else missing


def one_beside(inside: str, wanted: Mapping[str, Allowed], missing: str) -> Callable[[Sequence[Resource]], str | None]:
    """At the path `inside` of a resource beside it there must be one value whose properties are all as wanted."""

    def problem(beside: Sequence[Resource]) -> str | None:
        found = (item for other in beside for item in values(other.props, inside))
        fits = any(all(allowed(value(item, path)) for path, allowed in wanted.items()) for item in found)
        return None if fits else missing

    return problem


# --- what is allowed ---


def is_on(value: Any) -> bool:
    """A switch is on. A launch template's switches are text."""
    return value is not None and (value is True or value == "true")


def is_off(value: Any) -> bool:
    """A switch is off by the declaration itself, and not by the provider's default."""
    return value is not None and (value is False or value == "false")


def not_off(value: Any) -> bool:
    return not is_off(value)


def is_given(value: Any) -> bool:
    """It is declared; an unknown value is, too."""
    return value is not None


def is_absent(value: Any) -> bool:
    return value is None


def is_empty(value: Any) -> bool:
    """No list, or an empty one."""
    return value is None or not list(value)


def holds_some(value: Any) -> bool:
    return not is_empty(value)


def equals(*wanted: Any) -> Allowed:
    return lambda value: value is not None and any(value == one for one in wanted)


def same(*wanted: str) -> Allowed:
    """One of these texts, without regard to case, as Azure compares them."""
    return lambda value: value is not None and str(value).lower() in [one.lower() for one in wanted]


def at_least(wanted: int) -> Allowed:
    return lambda value: value is not None and int(value) >= wanted


def matches(pattern: str) -> Allowed:
    """The whole text matches."""
    return lambda value: re.fullmatch(pattern, str(value)) is not None


def absent_or(allowed: Allowed) -> Allowed:
    return lambda value: value is None or allowed(value)
