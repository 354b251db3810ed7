"""The pack under Pulumi's engine: pulumi preview --policy-pack infra/policy

Every rule is MANDATORY: a violation ends the preview, and so the `up` that begins with it. A value that is unknown in a
preview leaves a rule undecided, which never counts as a pass: the rule `undecided` lists each as a warning. During `up`
the engine applies the rule again when the value is known, before the resource is made.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Pulumi runs this directory and puts it on the path. Its files are modules of the package infra.policy, so replace it
# on the path by the directory that contains infra.
sys.path[:] = [str(HERE.parent.parent), *(path for path in sys.path if Path(path).resolve() != HERE)]

from collections.abc import Iterable, Mapping, Sequence  # noqa: E402
from dataclasses import replace  # noqa: E402
from typing import Any  # noqa: E402

from pulumi_policy import (  # noqa: E402
    EnforcementLevel,
    Policy,
    PolicyPack,
    PolicyResource,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)
from pulumi_policy.proxy import UnknownValueError  # noqa: E402

from infra.config import stack_file  # noqa: E402
from infra.policy import pack  # noqa: E402
from infra.policy.rule import DeclaredResource, PolicyFinding, PolicyRule, Stack, StackRule  # noqa: E402
from infra.policy.unknown import UNKNOWN  # noqa: E402

undecided: list[PolicyFinding] = []
"""Rules that could not be decided in this run; the last policy reports them."""
inputs: dict[str, Mapping[str, Any]] = {}
"""The inputs of each resource, by URN. Stack rules check inputs too, but the engine passes them outputs, in which the
provider has filled in properties that were not declared."""


def plain(value: Any) -> Any:
    """An engine's value with UNKNOWN for unknown parts; reading the engine's own unknowns would abort the rule."""
    if isinstance(value, Mapping):
        return {key: _at(value, key) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_at(value, index) for index in range(len(value))]
    return value


def _at(container: Any, key: Any) -> Any:
    try:
        return plain(container[key])
    except UnknownValueError:
        return UNKNOWN


def resource_of(args: ResourceValidationArgs | PolicyResource) -> DeclaredResource:
    """A resource of the engine's in the form that the rules judge."""
    links = args.property_dependencies if isinstance(args, PolicyResource) else {}
    return DeclaredResource(
        type=args.resource_type,
        name=args.name,
        props=plain(args.props),
        urn=args.urn,
        provider=plain(args.provider.props) if args.provider else {},
        links={key: frozenset(other.urn for other in others) for key, others in links.items()},
        ignores=tuple(args.opts.ignore_changes),
    )


def _report(findings: Iterable[PolicyFinding], report: ReportViolation) -> None:
    for finding in findings:
        if finding.decided:
            report(f"{finding.resource.name}: {finding.what}", finding.resource.urn)
        else:
            undecided.append(finding)


def _policy(rule: PolicyRule | StackRule) -> Policy:
    if isinstance(rule, StackRule):
        return StackValidationPolicy(
            rule.name, rule.description, lambda args, report: _report(rule.judge(_stack(args)), report)
        )

    def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
        resource = resource_of(args)
        inputs[resource.urn] = resource.props
        _report(rule.judge(resource), report)

    return ResourceValidationPolicy(rule.name, rule.description, validate)


def _stack(args: StackValidationArgs) -> Stack:
    found = [resource_of(resource) for resource in args.resources]
    # The stack's name from a URN, and its settings from its file: the engine does not pass them to a Python pack.
    stacks = [one.urn.split("::")[0].removeprefix("urn:pulumi:") for one in found]
    settings = stack_file.read(stacks[0]) if stacks else {}
    return pack.stack([replace(one, props=inputs.get(one.urn, one.props)) for one in found], settings)


def _undecided(_: StackValidationArgs, report: ReportViolation) -> None:
    for finding in undecided:
        report(f"{finding.resource.name}: {finding.rule}: {finding.what}; `up` decides it", finding.resource.urn)


def main() -> None:
    """Register every rule, and the list of what they could not decide, with Pulumi."""
    PolicyPack(
        name=pack.NAME,
        enforcement_level=EnforcementLevel.MANDATORY,
        policies=[
            *map(_policy, pack.RULES),
            *map(_policy, pack.STACK_RULES),
            StackValidationPolicy(
                "undecided",
                "What a rule could not decide, as a value is not known before `up`.",
                _undecided,
                EnforcementLevel.ADVISORY,
            ),
        ],
    )


if __name__ == "__main__":
    main()
