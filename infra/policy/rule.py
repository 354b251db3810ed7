"""Rules, and how they are applied to the declared resources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from infra.policy.unknown import UndecidedError

Props = Mapping[str, Any]


@dataclass(frozen=True)
class DeclaredResource:
    """A declared resource: its inputs under the engine's camelCase names."""

    type: str
    name: str
    props: Props
    urn: str = ""
    provider: Props = field(default_factory=dict)
    """The inputs of its provider; empty for the default one."""
    links: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Property -> URNs of the resources from which its value comes. Known in a preview even if the value is not."""
    ignores: tuple[str, ...] = ()
    """The resource's ignoreChanges."""


@dataclass(frozen=True)
class PolicyFinding:
    """A violation, or a rule that cannot be decided yet."""

    rule: str
    resource: DeclaredResource
    what: str
    decided: bool
    """False: the rule depends on an unknown value."""


Parts = Callable[[DeclaredResource], Iterable[Any]]
Problem = Callable[[Any], str | None]
"""What is wrong with a part, or None. Raises UndecidedError if that depends on an unknown value."""


@dataclass(frozen=True)
class Stack:
    """All declared resources, and the settings that rules depend on."""

    resources: Sequence[DeclaredResource]
    flow_logs: bool = False
    images: tuple[str, ...] = ()
    """Images named in the settings."""

    def of(self, *types: str) -> list[DeclaredResource]:
        """The resources of these types."""
        return [resource for resource in self.resources if resource.type in types]


def beside(
    type_: str, other_type: str, key: str
) -> Callable[[Stack], Iterable[tuple[DeclaredResource, list[DeclaredResource]]]]:
    """The parts of a StackRule: each resource of `type_`, with those of the other type whose property `key` refers to
    it or has its name."""

    def refers(other: DeclaredResource, resource: DeclaredResource) -> bool:
        if resource.urn in other.links.get(key, frozenset()):
            return True
        # The value may be the name given to the resource, written out instead of a reference.
        value, names = other.props.get(key), (resource.props.get("bucket"), resource.props.get("name"))
        return isinstance(value, str) and any(isinstance(name, str) and name == value for name in names)

    return lambda stack: (
        (resource, [other for other in stack.of(other_type) if refers(other, resource)]) for resource in stack.of(type_)
    )


@dataclass(frozen=True)
class _Named:
    name: str
    description: str
    """What the rule wants and why; the engine shows it with each violation. In brackets its sources: Checkov's checks
    (CKV), and the CIS Foundations Benchmarks of AWS (5.0) and Azure (3.0, 4.0)."""


@dataclass(frozen=True)
class PolicyRule(_Named):
    """A rule about one resource, independent of the others."""

    parts: Mapping[str, Parts]
    """Type -> the parts of such a resource to check, each separately. Type "*" is every resource."""
    problem: Problem

    def judge(self, resource: DeclaredResource) -> Iterator[PolicyFinding]:
        """The findings about one resource; none for a type that the rule is not about."""
        found = self.parts.get(resource.type, self.parts.get("*"))
        if found is not None:
            yield from _judge(self, ((resource, part) for part in found(resource)), resource)


@dataclass(frozen=True)
class StackRule(_Named):
    """A rule that relates resources, such as what must exist beside one."""

    parts: Callable[[Stack], Iterable[tuple[DeclaredResource, Any]]]
    """(resource for the finding, what to check about it)."""
    problem: Problem

    def judge(self, stack: Stack) -> Iterator[PolicyFinding]:
        """The findings about the stack's resources."""
        yield from _judge(self, self.parts(stack), None)


def _judge(
    rule: PolicyRule | StackRule, parts: Iterable[tuple[DeclaredResource, Any]], of: DeclaredResource | None
) -> Iterator[PolicyFinding]:
    """Check each part separately, so that an unknown value in one does not hide a violation in the next."""
    waiting = iter(parts)
    while True:
        try:
            resource, part = next(waiting)
        except StopIteration:
            return
        except UndecidedError:
            if of is None:
                raise  # computing the parts of a StackRule must not read values: a bug in the rule
            yield PolicyFinding(rule.name, of, "which parts it has is not known yet", decided=False)
            return
        try:
            what = rule.problem(part)
        except UndecidedError:
            yield PolicyFinding(rule.name, resource, "a value that decides it is not known yet", decided=False)
        else:
            if what is not None:
                yield PolicyFinding(rule.name, resource, what, decided=True)
