"""What a rule is, and how one is applied to what was declared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from infra.policy.unknown import UndecidedError

Props = Mapping[str, Any]


@dataclass(frozen=True)
class Resource:
    """One declared resource: its inputs as the engine names them, in camelCase."""

    type: str
    name: str
    props: Props
    urn: str = ""
    provider: Props = field(default_factory=dict)
    """The inputs of its provider; empty where it has the default one."""
    links: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Property -> URNs of the resources that its value comes from. Known in a preview, too, where the value is not."""
    ignores: tuple[str, ...] = ()
    """ignoreChanges."""


@dataclass(frozen=True)
class Finding:
    """What a rule has to say about a resource."""

    rule: str
    resource: Resource
    what: str
    decided: bool
    """False: a value was not known yet, and the rule holds or not only when it is."""


Parts = Callable[[Resource], Iterable[Any]]


@dataclass(frozen=True)
class Rule:
    """What a resource must be, whatever else is declared."""

    name: str
    description: str
    numbers: tuple[str, ...]
    """Where it comes from: Checkov's checks (CKV), the CIS Foundations Benchmarks of AWS (5.0) and Azure (3.0, 4.0)."""
    parts: Mapping[str, Parts]
    """Type -> what of such a resource is judged, one by one. Type "*" is every resource."""
    problem: Callable[[Any], str | None]
    """What is wrong with such a part; None where nothing is."""

    def judge(self, resource: Resource) -> Iterator[Finding]:
        found = self.parts.get(resource.type, self.parts.get("*"))
        if found is not None:
            yield from _judge(self, ((resource, part) for part in found(resource)), resource)


@dataclass(frozen=True)
class Stack:
    """All that was declared, and the settings that decide what must be."""

    resources: Sequence[Resource]
    flow_logs: bool = False
    images: tuple[str, ...] = ()
    """Images that the settings name."""

    def of(self, *types: str) -> list[Resource]:
        return [resource for resource in self.resources if resource.type in types]

    def beside(self, resource: Resource, type_: str, property_: str) -> list[Resource]:
        """The resources of the type whose property is made from `resource`."""
        return [
            other
            for other in self.of(type_)
            if resource.urn in other.links.get(property_, frozenset()) or _names(other.props.get(property_), resource)
        ]


def beside(type_: str, other: str, property_: str) -> Callable[[Stack], Iterable[tuple[Resource, list[Resource]]]]:
    """The parts of a StackRule: each resource of `type_`, with those of the type `other` whose property names it."""

    def parts(stack: Stack) -> Iterator[tuple[Resource, list[Resource]]]:
        for resource in stack.of(type_):
            yield resource, stack.beside(resource, other, property_)

    return parts


def _names(value: Any, resource: Resource) -> bool:
    """Whether the value is the name that a resource was given, as it may be written instead of a reference."""
    own = [resource.props.get(key) for key in ("bucket", "name") if key in resource.props]
    return isinstance(value, str) and any(isinstance(name, str) and name == value for name in own)


@dataclass(frozen=True)
class StackRule:
    """What must stand beside a resource."""

    name: str
    description: str
    numbers: tuple[str, ...]
    parts: Callable[[Stack], Iterable[tuple[Resource, Any]]]
    """What is judged, with the resource that it is said of."""
    problem: Callable[[Any], str | None]

    def judge(self, stack: Stack) -> Iterator[Finding]:
        yield from _judge(self, self.parts(stack), None)


def _judge(rule: Rule | StackRule, parts: Iterable[tuple[Resource, Any]], whole: Resource | None) -> Iterator[Finding]:
    """Each part on its own: what is not known of one hides nothing of the next."""
    waiting = iter(parts)
    while True:
        try:
            resource, part = next(waiting)
        except StopIteration:
            return
        except UndecidedError:
            if whole is None:
                raise  # a rule over the stack must not lose its place: its parts do not look into values
            yield Finding(rule.name, whole, "which parts it has is not known yet", decided=False)
            return
        try:
            what = rule.problem(part)
        except UndecidedError:
            yield Finding(rule.name, resource, "a value that decides it is not known yet", decided=False)
        else:
            if what is not None:
                yield Finding(rule.name, resource, what, decided=True)


# --- what the rules read properties with ---


def whole(resource: Resource) -> Iterator[Props]:
    yield resource.props


def block(props: Props, key: str) -> Props:
    """A nested block; empty where it is not there."""
    value = props.get(key)
    return {} if value is None else value


def items(props: Props, key: str) -> list[Any]:
    """A list; empty where it is not there."""
    value = props.get(key)
    return [] if value is None else list(value)


def is_on(value: Any) -> bool:
    """Whether a switch is on: a launch template's are texts."""
    return value is not None and (value is True or value == "true")


def is_off(value: Any) -> bool:
    """Whether a switch is off, and said to be: a default is not."""
    return value is not None and (value is False or value == "false")


def same(value: Any, wanted: str) -> bool:
    """Azure compares names without regard to case."""
    return value is not None and str(value).lower() == wanted.lower()
