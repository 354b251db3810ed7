"""What the real program declares, and changes to that which a policy rule must find.

    resources = declared("aws-xeon", {"nodes": "2", "publicKey": ...})     # the program, run under the recorder
    change("template", {"metadataOptions.httpTokens": "optional"})(resources)

A change names resources by a pattern for their logical names. A path is property names and list indices with dots
between, and goes on inside of a policy document given as JSON text. A change that meets no resource, or changes none,
fails.
"""

from __future__ import annotations

import copy
import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import program_recorder

from infra.config import stack_file
from infra.policy import pack
from infra.policy.rule import DeclaredResource

KINDS = {
    "aws-xeon": ("aws_mocks", "Amazon"),
    "aws-gpu": ("aws_mocks", "Amazon"),
    "aws-slurm": ("aws_mocks", "Amazon"),
    "aws-eks": ("aws_mocks", "Amazon"),
    "azure-xeon": ("azure_mocks", "Azure"),
}
"""What answers for a cluster's providers: module and class."""
OWN = {"adminCidr": "203.0.113.7/32", "owner": "me", "alertEmail": "me@example.org"}
OF_CLUSTER = {"aws-slurm": {"image": "ami-0bbbbbbbbbbbbbbbb"}}
"""What a cluster needs besides OWN: p3dn an image of its own (aws_mocks.OURS)."""
GONE = object()
"""As a new value: the property or the item is taken out."""

Resources = Sequence[DeclaredResource]
Change = Callable[[Resources], list[DeclaredResource]]


def settings(cluster: str, keys: Mapping[str, str]) -> dict[str, str]:
    return {**stack_file.read(cluster), **OWN, **OF_CLUSTER.get(cluster, {}), **keys}


def declared(cluster: str, keys: Mapping[str, str]) -> list[DeclaredResource]:
    """What the program declares with these keys, as the pack takes it; logical names serve as URNs."""
    ran = program_recorder.run(settings(cluster, keys), _providers(cluster), stack=cluster).declared
    return [
        DeclaredResource(
            type=one.type,
            name=one.name,
            props=one.inputs,
            urn=one.name,
            provider=ran[one.provider].inputs if one.provider else {},
            links=one.property_needs,
            ignores=one.ignore_changes,
        )
        for one in ran.values()
    ]


def found(cluster: str, keys: Mapping[str, str], resources: Resources) -> dict[str, list[str]]:
    """What the pack finds in the resources: rule -> `<resource>: <message>`."""
    by_rule: dict[str, list[str]] = {}
    for finding in pack.judge(pack.stack(resources, settings(cluster, keys))):
        decided = "" if finding.decided else "undecided: "
        by_rule.setdefault(finding.rule, []).append(f"{finding.resource.name}: {decided}{finding.what}")
    return by_rule


def _providers(cluster: str) -> Any:
    """The cluster's stand-in for its providers, with ids in the form that the clouds give them: rules read those."""
    module, kind = KINDS[cluster]

    class Real(getattr(importlib.import_module(module), kind)):  # type: ignore[misc]
        def outputs(self, args: Any) -> dict[str, Any]:
            made: dict[str, Any] = super().outputs(args)
            if args.typ.endswith(":GalleryImageVersion"):
                made["id"] = f"/subscriptions/s/resourceGroups/g/galleries/g/images/{args.name}/versions/1.0.0"
            if args.typ.endswith(":LogGroup"):
                made["arn"] = f"arn:aws:logs:us-east-1:123456789012:log-group:{args.name}"
            return made

    return Real()


# --- changes ---


def each(name: str, edit: Callable[[DeclaredResource], DeclaredResource]) -> Change:
    """Every resource whose name matches, edited; each of them must be another one then."""

    def apply(resources: Resources) -> list[DeclaredResource]:
        matched = {one.name: edit(one) for one in resources if re.fullmatch(name, one.name)}
        assert matched, f"no resource is called {name}"
        assert not any(one == matched.get(one.name) for one in resources), f"{name}: it is so already"
        return [matched.get(one.name, one) for one in resources]

    return apply


def change(name: str, values: Mapping[str, Any]) -> Change:
    """Other values at paths of the properties: a value, GONE, or a function of what is there."""

    def edit(resource: DeclaredResource) -> DeclaredResource:
        props: Any = copy.deepcopy(dict(resource.props))
        for path, value in values.items():
            props = put(props, path.split("."), value)
        return replace(resource, props=props)

    return each(name, edit)


def put(at: Any, steps: Sequence[str], value: Any) -> Any:
    """`at` with another value at the end of the steps."""
    if not steps:
        return value(at) if callable(value) else value
    if isinstance(at, str):
        return json.dumps(put(json.loads(at), steps, value))
    key: Any = int(steps[0]) if isinstance(at, list) else steps[0]
    if len(steps) == 1 and value is GONE:
        del at[key]
    else:
        at[key] = put(at[key] if isinstance(at, list) else at.get(key), steps[1:], value)
    return at


def without(name: str) -> Change:
    """The resource is not declared."""

    def apply(resources: Resources) -> list[DeclaredResource]:
        rest = [one for one in resources if one.name != name]
        assert len(rest) == len(resources) - 1, f"no resource is called {name}"
        return rest

    return apply


def unlinked(name: str, key: str, value: Any) -> Change:
    """A property is a value of its own, and comes from no other resource."""

    def edit(resource: DeclaredResource) -> DeclaredResource:
        links = {other: of for other, of in resource.links.items() if other != key}
        assert links != resource.links, f"{name}.{key} comes from no resource"
        return replace(resource, links=links, props={**resource.props, key: value})

    return each(name, edit)
