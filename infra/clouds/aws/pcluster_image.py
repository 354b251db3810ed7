"""The image that a ParallelCluster's machines boot: ParallelCluster's own, or one that its `build-image` has made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi_aws as aws

from infra.clouds.aws import api, machine_types
from infra.clouds.aws.findings import Unfit
from infra.clouds.aws.names import asking, region
from infra.clouds.aws.pcluster_config import OS, VERSION, needs_own_image
from infra.config.settings import Settings
from infra.config.values import SettingsError
from infra.errors import UsageError

VERSION_TAG = "parallelcluster:version"
"""ParallelCluster puts it on the images that it builds; a cluster boots images of its own version only."""
OS_TAG = "parallelcluster:os"
CONFIGURATION = "stacks/aws-slurm-image.yaml"
"""What `pcluster build-image` makes the image from."""
OFFICIAL = f"aws-parallelcluster-{VERSION}-{OS.replace('ubuntu', 'ubuntu-')}-lts-hvm-x86_64-*"
"""Form of the name of ParallelCluster's own images."""


def is_own(settings: Settings) -> bool:
    """Whether the machines boot an image that the user has built."""
    return settings.image != "bake"


def build_command(settings: Settings) -> str:
    """The command that builds the image, with the driver that older GPUs need."""
    return (
        f"pip install aws-parallelcluster=={VERSION} && pcluster build-image --image-id trainyard-closed-driver "
        f"--image-configuration {CONFIGURATION} --region {region(settings)}"
    )


def check(settings: Settings) -> None:
    """Raise SettingsError for a type whose GPUs ParallelCluster's own images cannot drive, and for a base image."""
    machine = machine_types.of(settings)
    if settings.cloud.base_image:
        raise SettingsError("baseImage", settings.cloud.base_image, f"empty on {settings.cluster}: nothing is baked")
    if needs_own_image(machine) and not is_own(settings):
        allowed = (
            f"ami-... of an image with NVIDIA's closed driver for {machine.name}, as ParallelCluster's own have the "
            f"open one; build it (an hour): {build_command(settings)}"
        )
        raise SettingsError("image", settings.image, allowed)


def given(settings: Settings, provider: aws.Provider) -> str | None:
    """The user's image; None for ParallelCluster's own. Raises UsageError if it does not exist, or is of another
    version of ParallelCluster."""
    if not is_own(settings):
        return None
    name = settings.image
    ids = aws.ec2.GetAmiIdsFilterArgs(name="image-id", values=[name])
    if not aws.ec2.get_ami_ids(owners=["self"], filters=[ids], opts=asking(provider)).ids:
        raise UsageError(f"image = {name!r}: this account has no such image in {region(settings)}")
    one = aws.ec2.GetAmiFilterArgs(name="image-id", values=[name])
    tags = aws.ec2.get_ami(owners=["self"], filters=[one], opts=asking(provider)).tags
    if why := unfit(settings, tags):
        raise UsageError(f"image = {name!r}: {why}")
    return name


def look(settings: Settings) -> dict[str, Any]:
    """The image as EC2 describes it, asked without Pulumi. Raises Unfit for one that the cluster cannot boot."""
    own, ec2 = is_own(settings), api.client("ec2", region(settings))
    by = api.where("image-id", settings.image) if own else api.where("name", OFFICIAL)
    listed = ec2.describe_images(Owners=["self" if own else "amazon"], Filters=by)["Images"]
    if not listed:
        what = f"this account has no image {settings.image}" if own else f"AWS has no image {OFFICIAL}"
        raise Unfit(f"{what} in {region(settings)}", build_command(settings))
    newest: dict[str, Any] = max(listed, key=lambda item: str(item.get("CreationDate", "")))
    if own and (why := unfit(settings, api.tags(newest))):
        raise Unfit(f"image {settings.image} {why.partition(': ')[0]}", build_command(settings))
    return newest


def unfit(settings: Settings, tags: Mapping[str, str]) -> str:
    """Why a cluster cannot boot the image with these tags; empty if it can."""
    found, system = tags.get(VERSION_TAG), tags.get(OS_TAG, OS)
    if (found, system) == (VERSION, OS):
        return ""
    what = f"was not built by ParallelCluster (no tag {VERSION_TAG})"
    if found:
        what = f"is of ParallelCluster {found} for {system}"
    return f"{what}, and this needs {VERSION} for {OS}: {build_command(settings)}"
