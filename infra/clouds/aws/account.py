"""Checks that the AWS account can hold the stack. Makes nothing: a launch is tried as a dry run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infra.clouds.aws import api, capacity, eks, eks_checks, machine_types, pcluster_image, quota, zones
from infra.clouds.aws.findings import Unfit, judged
from infra.clouds.aws.image import UBUNTU, bakes
from infra.clouds.aws.names import IMAGE_TAG, region
from infra.clouds.aws.pcluster_config import CLUSTER, of_queue
from infra.clouds.finding import Finding, State
from infra.config.settings import Settings
from infra.config.values import set_key
from infra.errors import OperationError, UsageError

ACTIONS = (
    *("ec2:RunInstances", "ec2:CreateVpc", "ec2:CreateImage", "ec2:CreatePlacementGroup", "ec2:CreateTags"),
    *("ec2:CreateCapacityReservation", "ec2:CancelCapacityReservation"),
    *("iam:CreateRole", "iam:PassRole", "s3:CreateBucket", "ssm:SendCommand", "budgets:ModifyBudget"),
)
"""A sample of the actions that `up` needs, at least one for each kind of resource."""
OF_PARALLELCLUSTER = (
    *("cloudformation:CreateStack", "cloudformation:DeleteStack", "lambda:CreateFunction", "iam:CreatePolicy"),
    *("iam:CreateServiceLinkedRole", "fsx:CreateFileSystem", "fsx:CreateDataRepositoryAssociation"),
)
"""More of them where ParallelCluster makes the cluster."""
OF_CLUSTER = {CLUSTER: OF_PARALLELCLUSTER, eks.CLUSTER: eks_checks.ACTIONS}
_ASK_ADMINISTRATOR = "aws sts decode-authorization-message --encoded-message ..., or ask the account's administrator"
_PERMISSIONS = "https://console.aws.amazon.com/iam/ (the permissions of your user or role), or ask who administers it"


def check(settings: Settings) -> list[Finding]:
    """All checks. Later ones need earlier ones, so a failure at the start ends the list."""
    return list(_findings(settings))


def cheap(settings: Settings) -> list[Finding]:
    """The two checks that `up` starts with: the type exists, and the zone offers it. UsageError without credentials."""
    api.identity(region(settings))
    type_ = _type(settings)
    return [type_] if type_.state == "failed" else [type_, _zone(settings)]


def offers(settings: Settings) -> list[str]:
    """Ids of the region's zones that offer the type. Raises OperationError when AWS cannot be asked."""
    name = machine_types.name_of(settings)
    arguments = {"LocationType": "availability-zone-id", "Filters": api.where("instance-type", name)}
    with api.explain(f"the zones that offer {name}"):
        listed = api.pages(_ec2(settings), "describe_instance_type_offerings", "InstanceTypeOfferings", **arguments)
    return sorted(item["Location"] for item in listed)


def _ec2(settings: Settings) -> Any:
    return api.client("ec2", region(settings))


def _another_type(settings: Settings) -> str:
    """The command that sets the type which the stack's kind of cluster has by default."""
    return set_key("instanceType", machine_types.choice(settings).default, settings.stack)


def _findings(settings: Settings) -> Iterator[Finding]:
    try:
        who = api.identity(region(settings))
    except (UsageError, OperationError) as error:
        state: State = "failed" if isinstance(error, UsageError) else "undecided"
        yield Finding("sign-in", state, str(error).removesuffix(f"; {api.SIGN_IN}"), api.SIGN_IN)
        return
    yield Finding("sign-in", "ok", f"account {who['Account']} as {who['Arn']}")
    yield (place := _region(settings))
    if place.state == "failed":
        return
    yield (type_ := _type(settings))
    if type_.state != "failed":
        yield _zone(settings)
        yield from quota.findings(settings)
        if settings.cloud.capacity_reservation.startswith("cr-"):
            yield _reservation(settings)
    if settings.cluster == eks.CLUSTER:
        yield eks_checks.versions(settings)
        yield eks_checks.operator(settings)
    yield (image := _image(settings))
    if image.state == "ok" and type_.state != "failed":
        yield _launch(settings)
    yield _rights(settings, who["Arn"])


@judged("region", "aws ec2 describe-regions --all-regions")
def _region(settings: Settings) -> str:
    """Asks in a region that every account has, as an unknown region has no endpoint."""
    where, listed = region(settings), api.client("ec2", "us-east-1").describe_regions(AllRegions=True)["Regions"]
    state = {item["RegionName"]: item.get("OptInStatus", "") for item in listed}.get(where)
    if state is None:
        raise Unfit(f"AWS has no region {where}", set_key("region", "us-east-1", settings.stack))
    if state == "not-opted-in":
        enable = f"aws account enable-region --region-name {where}"
        raise Unfit(f"{where} is not switched on for this account", enable)
    return where


@judged("type", "aws ec2 describe-instance-types --instance-types {type}")
def _type(settings: Settings) -> str:
    name, mend = machine_types.name_of(settings), _another_type(settings)
    try:
        listed = _ec2(settings).describe_instance_types(InstanceTypes=[name])["InstanceTypes"]
    except api.FAILURES as error:
        if api.code(error) in ("InvalidInstanceType", "InvalidParameterValue"):
            raise Unfit(f"{region(settings)} has no instance type {name}", mend) from None
        raise
    return f"{name}, {listed[0]['VCpuInfo']['DefaultVCpus']} vCPUs"


@judged("zone", "fab check --account --stack {settings.stack}")
def _zone(settings: Settings) -> str:
    name, zone, offered = machine_types.name_of(settings), zones.zone(settings), offers(settings)
    if not offered:
        mend = _another_type(settings)
        raise Unfit(f"no zone of {region(settings)} offers {name}", mend)
    if zone not in offered:
        problem = f"{zone} does not offer {name}; these do: {', '.join(offered)}"
        raise Unfit(problem, set_key("zone", offered[0], settings.stack))
    return f"{zone} offers {name} (of {', '.join(offered)})"


@judged(
    "reservation",
    "aws ec2 describe-capacity-reservations --capacity-reservation-ids {settings.cloud.capacity_reservation}",
)
def _reservation(settings: Settings) -> str:
    """Checks the capacity reservation for the nodes that the settings name."""
    name = machine_types.name_of(settings)
    try:
        capacity.given(of_queue(settings), name, zones.zone(settings))
    except UsageError as error:
        raise Unfit(str(error), set_key("capacityReservation", '""', settings.stack)) from None
    return f"{settings.cloud.capacity_reservation} has room for {of_queue(settings).nodes} {name}"


def _first_image(settings: Settings) -> str:
    """Id of the image that the first machine boots: the baked one, or the base that one is baked from."""
    if settings.cluster == CLUSTER:
        return str(pcluster_image.look(settings)["ImageId"])
    if settings.cluster == eks.CLUSTER:
        return str(api.client("ssm", region(settings)).get_parameter(Name=eks.IMAGE)["Parameter"]["Value"])
    if not bakes(settings):
        return settings.image
    newest = api.client("ssm", region(settings)).get_parameter
    return settings.cloud.base_image or str(newest(Name=UBUNTU)["Parameter"]["Value"])


@judged("image", "aws ec2 describe-images --region {region} --image-ids {settings.image} {settings.cloud.base_image}")
def _image(settings: Settings) -> str:
    if settings.cluster == CLUSTER:
        found = pcluster_image.look(settings)
        return f"{found['ImageId']} ({found.get('Name', '')})"
    if settings.cluster == eks.CLUSTER:
        return f"{_first_image(settings)} (EKS's newest with NVIDIA's driver, Kubernetes {eks.VERSION})"
    baked = not bakes(settings)
    key, shared = ("image", "") if baked else ("baseImage", ", nor one shared with it,")
    mend = set_key(key, "bake" if baked else '""', settings.stack)
    image = settings.image if baked else settings.cloud.base_image
    try:
        image = _first_image(settings)
        # A base may belong to anybody; a baked image must be the account's own, as `up` takes no other.
        own: dict[str, Any] = {"Owners": ["self"], "Filters": api.where("image-id", image)}
        listed = _ec2(settings).describe_images(**(own if baked else {"ImageIds": [image]}))["Images"]
    except api.FAILURES as error:
        if "NotFound" not in api.code(error) and "InvalidAMIID" not in api.code(error):
            raise OperationError(f"{key}: {api.one_line(error)}") from None
        listed = []
    if not listed:
        raise Unfit(f"{key} {image}: this account has no such image{shared} in {region(settings)}", mend)
    if listed[0]["State"] != "available":
        raise Unfit(f"{key} {image} is not available", mend)
    if baked and IMAGE_TAG not in api.tags(listed[0]):
        raise Unfit(f"{key} {image} was not baked by Trainyard: it has no tag {IMAGE_TAG}", mend)
    return f"{image} ({listed[0].get('Name', '')})"


@judged("launch", _ASK_ADMINISTRATOR)
def _launch(settings: Settings) -> str:
    """A dry run of EC2: may this operator launch this type from this image?"""
    name, image = machine_types.name_of(settings), _first_image(settings)
    try:
        _ec2(settings).run_instances(ImageId=image, InstanceType=name, MinCount=1, MaxCount=1, DryRun=True)
    except api.FAILURES as error:
        if (word := api.code(error)) == "DryRunOperation":
            return f"{name} from {image} may be launched (dry run)"
        if word in ("UnauthorizedOperation", "AccessDenied"):
            raise Unfit(f"you may not launch: {api.one_line(error)}", _ASK_ADMINISTRATOR) from None
        # A dry run names no subnet, so it fails in an account without a default VPC. `up` makes its own VPC.
        raise OperationError(f"the dry run says {api.one_line(error)}") from None
    raise Unfit("the dry run did not answer as one", "aws ec2 run-instances --dry-run ...", "undecided")


@judged("rights", _PERMISSIONS)
def _rights(settings: Settings, arn: str) -> str:
    """The other actions that `up` needs, by IAM's simulation of the operator's policies."""
    if arn.endswith(":root"):
        return "the account's root may do everything (better not to work as root)"
    actions = [*ACTIONS, *OF_CLUSTER.get(settings.cluster, ())]
    with api.explain("your policies cannot be simulated"):
        iam = api.client("iam", region(settings))
        answer = iam.simulate_principal_policy(PolicySourceArn=_source(arn), ActionNames=actions)
    results = answer["EvaluationResults"]
    if denied := [entry["EvalActionName"] for entry in results if entry["EvalDecision"] != "allowed"]:
        raise Unfit(f"you may not {', '.join(denied)}", _PERMISSIONS)
    return f"{len(actions)} actions that `up` needs are allowed"


def _source(arn: str) -> str:
    """The ARN of the user, or of the role behind a session: IAM simulates only these. A session's ARN lacks the role's
    path."""
    start, _, session = arn.partition(":assumed-role/")
    return f"{start.replace(':sts:', ':iam:')}:role/{session.split('/')[0]}" if session else arn
