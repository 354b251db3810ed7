"""CloudFormation's resources as the policy pack takes Pulumi's: the same rules hold for what ParallelCluster makes.

resources(templates, tags)      # {name: template} -> the resources that rules know, under Pulumi's types and names
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from infra.policy import resource_types as types
from infra.policy.rule import DeclaredResource

TYPES = {
    "AWS::EC2::Instance": types.INSTANCE,
    "AWS::EC2::LaunchTemplate": types.TEMPLATE,
    "AWS::EC2::SecurityGroup": types.GROUP,
    "AWS::IAM::Role": types.ROLE,
    "AWS::IAM::Policy": types.ROLE_POLICY,
    "AWS::S3::Bucket": types.BUCKET,
}
PLAIN = ("PolicyDocument", "AssumeRolePolicyDocument", "Tags")
_JOINED = {"AWS::Partition": "aws", "AWS::Region": "us-east-1", "AWS::AccountId": "123456789012"}
_JOINED["AWS::URLSuffix"] = "amazonaws.com"


def resources(templates: Mapping[str, Any], tags: Mapping[str, str]) -> list[DeclaredResource]:
    """`tags`: the stack's own, which CloudFormation puts on all that it makes."""
    found, provider = [], {"defaultTags": {"tags": tags}}
    for template in templates.values():
        for name, resource in template["Resources"].items():
            if resource["Type"] in TYPES:
                props = dict(_properties(resource["Type"], text(resource.get("Properties", {}))))
                found.append(DeclaredResource(TYPES[resource["Type"]], name, props, urn=name, provider=provider))
    return found


def text(value: Any) -> Any:
    """Values with CloudFormation's functions worked out: a reference to another resource is its name in brackets."""
    if isinstance(value, list):
        return [text(entry) for entry in value]
    if not isinstance(value, Mapping):
        return value
    if len(value) == 1:
        ((function, argument),) = value.items()
        if function == "Ref":
            return _JOINED.get(argument, f"<{argument}>")
        if function == "Fn::Join":
            return argument[0].join(str(part) for part in text(argument[1]))
        if function.startswith("Fn::"):
            return f"<{function} {json.dumps(text(argument))}>"
    return {key: text(inner) for key, inner in value.items()}


def _properties(type_: str, props: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Pulumi's names of a resource's properties, as far as rules read them."""
    inner = props.get("LaunchTemplateData", props)
    for key, value in inner.items():
        yield _small(key), value if key in PLAIN else _renamed(value)
    if type_ == "AWS::IAM::Policy":
        yield "policy", json.dumps(props["PolicyDocument"])
    if type_ == "AWS::IAM::Role":
        yield "assumeRolePolicy", json.dumps(props["AssumeRolePolicyDocument"])
        yield "inlinePolicies", [{"policy": json.dumps(own["PolicyDocument"])} for own in props.get("Policies", [])]
    tags = {tag["Key"]: tag["Value"] for tag in props.get("Tags", [])}
    yield "tags", tags
    if props.get("PropagateTagsToVolumeOnCreation"):
        yield "volumeTags", tags


def _renamed(value: Any) -> Any:
    if isinstance(value, list):
        return [_renamed(entry) for entry in value]
    if isinstance(value, Mapping):
        return {_small(key): _renamed(inner) for key, inner in value.items()}
    return value


def _small(key: str) -> str:
    return key[:1].lower() + key[1:]
