"""Whether AWS would accept what we send it: a judge of requests, by AWS's own service models and by its documentation.

    refused("ec2", "CreateSecurityGroup", {"GroupName": "nodes", ...})    # what is wrong with one call
    declared(ran)                                                         # with what a Pulumi program declares
    watch(session)                                                        # every boto3 call of a session from now on

Neither moto nor Pulumi's provider checks forms. botocore's models have patterns, lengths, enumerations and types of
most services, and botocore itself checks only types; what the models lack is in DOCUMENTED, each with its source.
A property that no table has is an error: a new kind of resource has to be entered before it passes.
"""

from __future__ import annotations

import base64
import functools
import ipaddress
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import botocore.session
import regex
from aws_calls import REQUESTS
from aws_requests import requests
from program_recorder import Ran

EC2 = "https://docs.aws.amazon.com/AWSEC2/latest/APIReference/"
IAM_LIMITS = "https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html"
GROUP_TEXT = r"[a-zA-Z0-9 ._\-:/()#,@\[\]+=&;{}!$*]{1,255}"
MODEL_IS_WRONG = {
    # The model of 2026 has a ^ in the middle, which nothing can match.
    ("ec2", "PlacementGroupArn"): r"arn:aws([a-z-]+)?:ec2:[a-z\d-]+:\d{12}:placement-group/.{1,255}",
}


@dataclass(frozen=True)
class Form:
    """What the documentation says of one member, where the service's model says less."""

    service: str
    member: str
    """Its path, as `CreateSecurityGroup.Description`; a list's entries are [], and * is any operation."""
    allowed: str
    """A pattern of the whole text."""
    source: str

    def is_of(self, path: str) -> bool:
        any_operation = self.member.startswith("*.")
        return path == self.member or (any_operation and f".{path.partition('.')[2]}".endswith(self.member[1:]))


DOCUMENTED = (
    Form("ec2", "CreateSecurityGroup.GroupName", rf"(?!sg-){GROUP_TEXT}", f"{EC2}API_CreateSecurityGroup.html"),
    Form("ec2", "CreateSecurityGroup.Description", GROUP_TEXT, f"{EC2}API_CreateSecurityGroup.html"),
    Form("ec2", "*.IpPermissions[].IpRanges[].Description", GROUP_TEXT, f"{EC2}API_IpRange.html"),
    Form("ec2", "*.IpPermissions[].UserIdGroupPairs[].Description", GROUP_TEXT, f"{EC2}API_UserIdGroupPair.html"),
    Form("ec2", "*.KeyName", r"[ -~]{1,255}", f"{EC2}API_ImportKeyPair.html"),
    Form("ec2", "ImportKeyPair.PublicKeyMaterial", r"(ssh-rsa|ssh-ed25519) .{1,2030}", f"{EC2}API_ImportKeyPair.html"),
    Form("ec2", "CreatePlacementGroup.GroupName", r"[ -~]{1,255}", f"{EC2}API_CreatePlacementGroup.html"),
    Form(
        "ec2",
        "CreateLaunchTemplate.LaunchTemplateName",
        r"[a-zA-Z0-9().\-/_]{3,128}",
        f"{EC2}API_CreateLaunchTemplate.html",
    ),
    Form("ec2", "CreateLaunchTemplate.VersionDescription", r".{0,255}", f"{EC2}API_CreateLaunchTemplate.html"),
    Form("ec2", "CreateImage.Name", r"[a-zA-Z0-9()\[\] ./\-'@_]{3,128}", f"{EC2}API_CreateImage.html"),
    Form("ec2", "CreateImage.Description", r".{0,255}", f"{EC2}API_CreateImage.html"),
    Form("ec2", "*.ImageId", r"ami-([0-9a-f]{8}|[0-9a-f]{16,17})", f"{EC2}API_RunInstances.html"),
    Form("ec2", "*.AvailabilityZoneId", r"[a-z]{3,8}[0-9]-az[0-9]{1,2}", f"{EC2}API_CreateSubnet.html"),
    Form(
        "ec2",
        "CreateVpcEndpoint.ServiceName",
        r"(cn\.)?com\.amazonaws\.[a-z]{2}(-[a-z]+)+-\d\.[a-z0-9.-]+",
        f"{EC2}API_CreateVpcEndpoint.html",
    ),
    Form(
        "s3",
        "*.Bucket",
        # Letters in small, digits, dots and hyphens; no two dots, no address, none of the reserved beginnings and ends.
        r"(?!xn--|sthree-|amzn-s3-demo-)(?!.*(\.\.|\.-|-\.))(?!\d+\.\d+\.\d+\.\d+$)(?!.*(-s3alias|--ol-s3|\.mrap|--x-s3)$)"
        r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
        "https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html",
    ),
    Form(
        "logs",
        "PutRetentionPolicy.retentionInDays",
        r"1|3|5|7|14|30|60|90|120|150|180|365|400|545|731|1096|1827|2192|2557|2922|3288|3653",
        "https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutRetentionPolicy.html",
    ),
    Form("iam", "CreateRole.AssumeRolePolicyDocument", r"(?s).{1,2048}", IAM_LIMITS),
    Form("iam", "CreatePolicy.PolicyDocument", r"(?s).{1,6144}", IAM_LIMITS),
    Form(
        "cloudformation",
        "CreateStack.TemplateBody",
        r"(?s).{1,51200}",
        "https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html",
    ),
    Form("iam", "PutRolePolicy.PolicyDocument", r"(?s).{1,10240}", IAM_LIMITS),
    Form(
        "s3",
        "PutBucketPolicy.Policy",
        r"(?s).{1,20480}",
        "https://docs.aws.amazon.com/AmazonS3/latest/userguide/access-policy-language-overview.html",
    ),
)
TAG_KEY = r"(?!aws:)[\p{L}\p{N}\p{Z}_.:/=+\-@]{1,128}"
TAG_VALUE = r"[\p{L}\p{N}\p{Z}_.:/=+\-@]{0,256}"
TAG_COUNT = 50
"""https://docs.aws.amazon.com/tag-editor/latest/userguide/best-practices-and-strats.html: the characters that every
service takes, and the lengths and the number that all have in common."""
USER_DATA_BYTES = 16 * 1024
"""Before base64: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html"""
NO_SUCH_VALUE = "is none of AWS's values"
POLICY_KEYS = ("Version", "Statement", "Id")
SID = r"[a-zA-Z0-9]*"
"""https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_sid.html"""


# --- one request ---


@functools.cache
def _model(service: str) -> Any:
    return botocore.session.get_session().get_service_model(service)


def refused(service: str, operation: str, request: Mapping[str, Any]) -> list[str]:
    """What AWS would not accept of a request; empty: nothing that is known."""
    shape = _model(service).operation_model(operation).input_shape
    return [] if shape is None else list(_of(shape, request, service, operation))


def _of(shape: Any, value: Any, service: str, path: str) -> Iterator[str]:
    kind = shape.type_name
    if kind == "structure":
        yield from _structure(shape, value, service, path)
    elif kind == "list":
        if not isinstance(value, list | tuple):
            yield f"{path}: {value!r} is no list"
            return
        yield from _within(shape, len(value), path, "entries")
        for entry in value:
            yield from _of(shape.member, entry, service, f"{path}[]")
        if path.endswith(("Tags", "tags", "TagSet")) and value and isinstance(value[0], Mapping):
            yield from _tags({_tag(entry, "Key"): _tag(entry, "Value") for entry in value}, path)
    elif kind == "map":
        if path.endswith("tags"):
            yield from _tags(value, path)
        for entry in value.values():
            yield from _of(shape.value, entry, service, f"{path}{{}}")
    elif kind in ("string", "blob"):
        yield from _text(shape, value, service, path)
    elif kind in ("integer", "long", "float", "double"):
        yield from _number(shape, value, kind, path)
        yield from _documented(service, path, f"{value:g}" if isinstance(value, int | float) else str(value))
    elif kind == "boolean" and not isinstance(value, bool) and value not in ("true", "false"):
        yield f"{path}: {value!r} is no boolean"


def _structure(shape: Any, value: Any, service: str, path: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{path}: {value!r} is no structure"
        return
    for name in shape.required_members:
        if value.get(name) is None:
            yield f"{path}.{name}: must be there"
    for name, inner in value.items():
        if name not in shape.members:
            yield f"{path}.{name}: the operation has no such member"
        elif inner is not None:
            yield from _of(shape.members[name], inner, service, f"{path}.{name}")


def _text(shape: Any, value: Any, service: str, path: str) -> Iterator[str]:
    text = value.decode() if isinstance(value, bytes) else value
    if not isinstance(text, str):
        yield f"{path}: {value!r} is no text"
        return
    limits = shape.metadata
    if limits.get("enum") and text not in limits["enum"]:
        yield f"{path}: {text!r} {NO_SUCH_VALUE}"
    pattern = MODEL_IS_WRONG.get((service, path.rpartition(".")[2]), limits.get("pattern"))
    # Java's way to write the characters above U+FFFF.
    pattern = pattern and pattern.replace(r"\uD800\uDC00-\uDBFF\uDFFF", r"\U00010000-\U0010FFFF")
    if pattern and not regex.fullmatch(pattern, text):
        yield f"{path}: {text!r} is not of the form {pattern}"
    yield from _within(shape, len(text), path, "characters")
    yield from _documented(service, path, text)
    if path.endswith("UserData"):
        size = len(base64.b64decode(text, validate=True))
        if size > USER_DATA_BYTES:
            yield f"{path}: {size} bytes, and AWS takes {USER_DATA_BYTES}"
    if path.endswith(("PolicyDocument", "PutBucketPolicy.Policy")):
        yield from _policy(text, path)


def _number(shape: Any, value: Any, kind: str, path: str) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        yield f"{path}: {value!r} is no number"
    elif kind in ("integer", "long") and value != int(value):
        yield f"{path}: {value!r} is no whole number"
    else:
        yield from _within(shape, value, path, "")


def _within(shape: Any, size: float, path: str, what: str) -> Iterator[str]:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if (least is not None and size < float(least)) or (most is not None and size > float(most)):
        yield f"{path}: {size:g} {what}, allowed are {least} to {most}"


def _documented(service: str, path: str, text: str) -> Iterator[str]:
    for form in DOCUMENTED:
        if form.service == service and form.is_of(path) and not regex.fullmatch(form.allowed, text):
            yield f"{path}: {text!r} is not of the form {form.allowed} ({form.source})"


def _tag(entry: Mapping[str, Any], key: str) -> str:
    return str(entry.get(key, entry.get(key.lower(), entry.get(f"Tag{key}", ""))))  # KMS: TagKey


def _tags(tags: Mapping[str, str], path: str) -> Iterator[str]:
    if len(tags) > TAG_COUNT:
        yield f"{path}: {len(tags)} tags, allowed are {TAG_COUNT}"
    for key, value in tags.items():
        if not regex.fullmatch(TAG_KEY, key):
            yield f"{path}: {key!r} is no key of a tag"
        if not regex.fullmatch(TAG_VALUE, value):
            yield f"{path}: {value!r} is no value of a tag"


def _policy(text: str, path: str) -> Iterator[str]:
    document = json.loads(text)
    for key in document:
        if key not in POLICY_KEYS:
            yield f"{path}: a policy has no {key}"
    for statement in document["Statement"]:
        if not regex.fullmatch(SID, statement.get("Sid", "")):
            yield f"{path}: {statement['Sid']!r} is no Sid"


# --- what a Pulumi program declares ---


def declared(ran: Ran) -> list[str]:
    """What AWS would not accept of all that a program declares for it, each with the resource's name."""
    common = json.loads(ran["aws"].inputs["defaultTags"])["tags"]
    found: list[str] = []
    for one in ran.declared.values():
        if not one.type.startswith("aws:"):
            continue
        if one.type not in REQUESTS:
            found.append(f"{one.name}: nothing is known of {one.type}; enter it in aws_calls.py")
            continue
        for asked in requests(one.type, one.inputs):
            found += [f"{one.name}: {what}" for what in asked.unknown]
            found += [f"{one.name}: {what}" for what in refused(asked.service, asked.operation, asked.request)]
        for key in ("tags", "volumeTags"):
            found += [f"{one.name}: {what}" for what in _tags({**common, **one.inputs.get(key, {})}, key)]
    return [*found, *_addresses(ran)]


def _addresses(ran: Ran) -> Iterator[str]:
    """Networks of a size that AWS has, and fixed addresses inside their subnets, past those that AWS keeps.

    https://docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html
    """
    subnets = {f"{one.name}-id": ipaddress.IPv4Network(one.inputs["cidrBlock"]) for one in ran.of("ec2/subnet:Subnet")}
    networks = [ipaddress.IPv4Network(one.inputs["cidrBlock"]) for one in ran.of("ec2/vpc:Vpc")]
    for network in (*networks, *subnets.values()):
        if not 16 <= network.prefixlen <= 28:
            yield f"{network}: AWS's networks are of /16 to /28"
    templates = {f"{one.name}-id": one.inputs for one in ran.of("ec2/launchTemplate:LaunchTemplate")}
    for one in ran.of("ec2/instance:Instance"):
        if "subnetId" in one.inputs:
            given, subnet = one.inputs.get("privateIp"), subnets[one.inputs["subnetId"]]
        else:  # a node with EFA has its place in the network from its own template
            first = templates[one.inputs["launchTemplate"]["id"]]["networkInterfaces"][0]
            given, subnet = first["privateIpAddress"], subnets[first["subnetId"]]
        if given is None:
            continue
        at = int(ipaddress.IPv4Address(given)) - int(subnet.network_address)
        if not 4 <= at < subnet.num_addresses - 1:
            yield f"{one.name}: {given} is not an address that a machine may have in {subnet}"


# --- what our own programs call ---


def watch(session: Any) -> None:
    """Judge every call that a boto3 session's clients make from now on; AssertionError at the first that is wrong."""
    session.events.register("provide-client-params", _judge)


def _judge(params: Mapping[str, Any], model: Any, **_: Any) -> None:
    found = refused(model.service_model.service_name, model.name, params)
    if model.name.startswith("Describe"):  # whether there is such a type is what it asks
        found = [line for line in found if not line.endswith(NO_SUCH_VALUE)]
    assert not found, found
