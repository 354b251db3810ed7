"""Checks that the AWS account can hold the stack. Makes nothing: a launch is tried as a dry run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infra.clouds.aws import api, capacity, machine_types, quota, zones
from infra.clouds.aws.api import SIGN_IN
from infra.clouds.aws.image import UBUNTU, bakes
from infra.clouds.aws.names import IMAGE_TAG, region
from infra.clouds.finding import Finding
from infra.config.settings import Settings
from infra.config.values import set_key
from infra.errors import OperationError, UsageError

ACTIONS = (
    *("ec2:RunInstances", "ec2:CreateVpc", "ec2:CreateImage", "ec2:CreatePlacementGroup", "ec2:CreateTags"),
    *("ec2:CreateCapacityReservation", "ec2:CancelCapacityReservation"),
    *("iam:CreateRole", "iam:PassRole", "s3:CreateBucket", "ssm:SendCommand", "budgets:ModifyBudget"),
)
"""A sample of the actions that `up` needs, at least one for each kind of resource."""


def check(settings: Settings) -> list[Finding]:
    """All checks. Later ones need earlier ones, so a failure at the start ends the list."""
    return list(_findings(settings))


def cheap(settings: Settings) -> list[Finding]:
    """The two checks that `up` starts with: the type exists, and the zone offers it."""
    ec2 = api.client("ec2", region(settings))
    finding, _ = _type(ec2, settings)
    return [finding] if finding.state == "failed" else [finding, _zone(ec2, settings)]


def offers(settings: Settings) -> list[str]:
    """Ids of the region's zones that offer the type. Raises OperationError when AWS cannot be asked."""
    ec2 = api.client("ec2", region(settings))
    wanted = [{"Name": "instance-type", "Values": [_name(settings)]}]
    try:
        listed = api.pages(
            ec2,
            "describe_instance_type_offerings",
            "InstanceTypeOfferings",
            LocationType="availability-zone-id",
            Filters=wanted,
        )
    except api.FAILURES as error:
        raise OperationError(f"the zones that offer {_name(settings)}: {api.one_line(error)}") from None
    return sorted(item["Location"] for item in listed)


def _name(settings: Settings) -> str:
    return settings.cloud.instance_type or machine_types.DEFAULT


def _findings(settings: Settings) -> Iterator[Finding]:
    where = region(settings)
    try:
        who = api.identity(where)
    except UsageError as error:
        yield Finding("sign-in", "failed", str(error).partition(";")[0], SIGN_IN)
        return
    except OperationError as error:
        yield Finding("sign-in", "undecided", str(error), SIGN_IN)
        return
    yield Finding("sign-in", "ok", f"account {who['Account']} as {who['Arn']}")
    ec2 = api.client("ec2", where)
    place = _region(settings, where)
    yield place
    if place.state == "failed":
        return
    kind, vcpus = _type(ec2, settings)
    yield kind
    if kind.state != "failed":
        yield _zone(ec2, settings)
        yield from quota.findings(ec2, settings, vcpus)
        yield from _reservation(settings)
    image, finding = _image(ec2, settings, where)
    yield finding
    if image and kind.state != "failed":
        yield _launch(ec2, settings, image)
    yield _rights(settings, who["Arn"], where)


def _region(settings: Settings, where: str) -> Finding:
    """Asks in a region that every account has, as an unknown region has no endpoint."""
    known = set_key("region", "us-east-1", settings.stack)
    try:
        listed = api.client("ec2", "us-east-1").describe_regions(AllRegions=True)["Regions"]
    except api.FAILURES as error:
        return Finding("region", "undecided", api.one_line(error), "aws ec2 describe-regions --all-regions")
    state = {item["RegionName"]: item.get("OptInStatus", "") for item in listed}.get(where)
    if state is None:
        return Finding("region", "failed", f"AWS has no region {where}", known)
    if state == "not-opted-in":
        enable = f"aws account enable-region --region-name {where}"
        return Finding("region", "failed", f"{where} is not switched on for this account", enable)
    return Finding("region", "ok", where)


def _type(ec2: Any, settings: Settings) -> tuple[Finding, int]:
    """(finding, vCPUs of the type)."""
    name, mend = _name(settings), set_key("instanceType", machine_types.DEFAULT, settings.stack)
    try:
        listed = ec2.describe_instance_types(InstanceTypes=[name])["InstanceTypes"]
    except api.FAILURES as error:
        if api.code(error) in ("InvalidInstanceType", "InvalidParameterValue"):
            said = f"{region(settings)} has no instance type {name}"
            return Finding("type", "failed", said, mend), 0
        look = f"aws ec2 describe-instance-types --instance-types {name}"
        return Finding("type", "undecided", api.one_line(error), look), 0
    vcpus = listed[0]["VCpuInfo"]["DefaultVCpus"]
    return Finding("type", "ok", f"{name}, {vcpus} vCPUs"), vcpus


def _zone(ec2: Any, settings: Settings) -> Finding:
    name, zone = _name(settings), zones.zone(settings)
    try:
        offered = offers(settings)
    except OperationError as error:
        return Finding("zone", "undecided", str(error), f"fab check --account --stack {settings.stack}")
    if not offered:
        mend = set_key("instanceType", machine_types.DEFAULT, settings.stack)
        return Finding("zone", "failed", f"no zone of {region(settings)} offers {name}", mend)
    if zone not in offered:
        said = f"{zone} does not offer {name}; these do: {', '.join(offered)}"
        return Finding("zone", "failed", said, set_key("zone", offered[0], settings.stack))
    return Finding("zone", "ok", f"{zone} offers {name} (of {', '.join(offered)})")


def _reservation(settings: Settings) -> Iterator[Finding]:
    """Checks the capacity reservation for the nodes, if the settings name one."""
    name = settings.cloud.capacity_reservation
    if not name.startswith("cr-"):
        return
    try:
        capacity.given(settings, _name(settings), zones.zone(settings))
    except UsageError as error:
        mend = set_key("capacityReservation", '""', settings.stack)
        yield Finding("reservation", "failed", str(error), mend)
    except OperationError as error:
        look = f"aws ec2 describe-capacity-reservations --capacity-reservation-ids {name}"
        yield Finding("reservation", "undecided", str(error), look)
    else:
        yield Finding("reservation", "ok", f"{name} has room for {settings.nodes} {_name(settings)}")


def _image(ec2: Any, settings: Settings, where: str) -> tuple[str, Finding]:
    """(id of the image that the first machine boots, finding)."""
    image, baked = settings.image, not bakes(settings)
    key = "image" if baked else "baseImage"
    mend = set_key(key, "bake" if baked else '""', settings.stack)
    try:
        if not baked:
            image = settings.cloud.base_image or _ubuntu(where)
        # A base may belong to anybody; a baked image must be the account's own, as `up` takes no other.
        own: dict[str, Any] = {"Owners": ["self"], "Filters": [{"Name": "image-id", "Values": [image]}]}
        listed = ec2.describe_images(**(own if baked else {"ImageIds": [image]}))["Images"]
    except api.FAILURES as error:
        if "NotFound" in api.code(error) or "InvalidAMIID" in api.code(error):
            return "", Finding("image", "failed", _missing(key, image, where, baked), mend)
        look = f"aws ec2 describe-images --region {where} --image-ids {image}"
        return "", Finding("image", "undecided", f"{key}: {api.one_line(error)}", look)
    if not listed:
        return "", Finding("image", "failed", _missing(key, image, where, baked), mend)
    if listed[0]["State"] != "available":
        return "", Finding("image", "failed", f"{key} {image} is not available", mend)
    if baked and IMAGE_TAG not in api.tags(listed[0]):
        said = f"{key} {image} was not baked by Trainyard: it has no tag {IMAGE_TAG}"
        return "", Finding("image", "failed", said, mend)
    return image, Finding("image", "ok", f"{image} ({listed[0].get('Name', '')})")


def _missing(key: str, image: str, where: str, baked: bool) -> str:
    return f"{key} {image}: this account has no such image{'' if baked else ', nor one shared with it,'} in {where}"


def _ubuntu(where: str) -> str:
    return str(api.client("ssm", where).get_parameter(Name=UBUNTU)["Parameter"]["Value"])


def _launch(ec2: Any, settings: Settings, image: str) -> Finding:
    """A dry run of EC2: may this operator launch this type from this image?"""
    try:
        ec2.run_instances(ImageId=image, InstanceType=_name(settings), MinCount=1, MaxCount=1, DryRun=True)
    except api.FAILURES as error:
        word = api.code(error)
        if word == "DryRunOperation":
            return Finding("launch", "ok", f"{_name(settings)} from {image} may be launched (dry run)")
        look = "aws sts decode-authorization-message --encoded-message ..., or ask the account's administrator"
        if word in ("UnauthorizedOperation", "AccessDenied"):
            return Finding("launch", "failed", f"you may not launch: {api.one_line(error)}", look)
        # A dry run names no subnet, so it fails in an account without a default VPC. `up` makes its own VPC.
        return Finding("launch", "undecided", f"the dry run says {api.one_line(error)}", look)
    return Finding("launch", "undecided", "the dry run did not answer as one", "aws ec2 run-instances --dry-run ...")


def _rights(settings: Settings, arn: str, where: str) -> Finding:
    """The other actions that `up` needs, by IAM's simulation of the operator's policies."""
    look = "https://console.aws.amazon.com/iam/ (the permissions of your user or role), or ask who administers it"
    if arn.endswith(":root"):
        return Finding("rights", "ok", "the account's root may do everything (better not to work as root)")
    try:
        answer = api.client("iam", where).simulate_principal_policy(
            PolicySourceArn=_source(arn), ActionNames=list(ACTIONS)
        )
    except api.FAILURES as error:
        said = f"your policies cannot be simulated: {api.one_line(error)}"
        return Finding("rights", "undecided", said, look)
    denied = [entry["EvalActionName"] for entry in answer["EvaluationResults"] if entry["EvalDecision"] != "allowed"]
    if denied:
        return Finding("rights", "failed", f"you may not {', '.join(denied)}", look)
    return Finding("rights", "ok", f"{len(ACTIONS)} actions that `up` needs are allowed")


def _source(arn: str) -> str:
    """The ARN of the user, or of the role behind a session: IAM simulates only these. A session's ARN lacks the role's
    path."""
    start, _, session = arn.partition(":assumed-role/")
    return f"{start.replace(':sts:', ':iam:')}:role/{session.split('/')[0]}" if session else arn
