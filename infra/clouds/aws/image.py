"""The golden image, made in stages: builder -> baked -> sealed -> stopped -> image.

Logical names contain the image's key: another bootstrap makes another builder and image, before the old ones are
deleted. With `image: ami-...` none of this is declared.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra import user_data
from infra.clouds.aws import eks, machine_types, pcluster_config
from infra.clouds.aws.builder import END, Baked, Sealed
from infra.clouds.aws.foundation import Ground
from infra.clouds.aws.names import IMAGE_TAG, asking, named, region, titled
from infra.clouds.naming import tags
from infra.config.settings import Settings
from infra.config.values import SettingsError
from infra.errors import UsageError

UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
"""The SSM parameter that names Canonical's newest image."""
BUILDER_DISK_GB = 30
"""Enough GB for the software and its installation; a node's root file system grows to its own disk at first boot."""
CUDA_DISK_GB = 60
"""The same with profile cuda: torch with CUDA's libraries, the driver, and the compiler that builds nccl-tests."""
BUILDER_CORES = 4
"""Few, as most of a bake is downloads and unpacking."""
GPU_BUILDER = "m6i.2xlarge"
"""Bakes the image of nodes with GPUs: the software needs a GPU to be tested, not to be installed, and a p3dn.24xlarge
costs 80 times as much. Every zone that offers p3dn offers it. The nodes test the GPUs at their first boot."""
IMAGING = "90m"
"""Timeout of making the image: the snapshot copies the whole new volume."""
KEPT = ["ami", "instance_type", "associate_public_ip_address", "user_data_base64"]
"""Changes that do not replace a baked builder: its name already contains the image's key. A newer Ubuntu, another
maxHours, or the missing address of a stopped machine are no reasons to bake again."""


@dataclass(frozen=True)
class Golden:
    """The image that the nodes boot."""

    key: str
    """The key of what it was baked from; image.json on it has the same."""
    ami: pulumi.Input[str]


def bakes(settings: Settings) -> bool:
    """Whether `up` makes the image; ParallelCluster and EKS have their own."""
    return settings.image == "bake" and settings.cluster not in (pcluster_config.CLUSTER, eks.CLUSTER)


def key(settings: Settings) -> str:
    """The key of the image that these settings bake: with the name of the base, as Canonical's newest image changes
    every other week, and each change would cost half an hour of baking. `baseImage: ami-...` pins the base."""
    machine = machine_types.for_nodes(machine_types.of(settings))
    # With GPUs the software depends on them: their architecture, and whether EFA reads their memory.
    gpus = [str(machine[key]) for key in ("GPU_ARCHITECTURE", "GPU_RDMA") if key in machine]
    return user_data.image_key(settings, "aws", settings.cloud.base_image or UBUNTU, *gpus)


def check(settings: Settings) -> None:
    """Raises SettingsError for a baseImage that is not an AWS one."""
    base = settings.cloud.base_image
    if base and not base.startswith("ami-"):
        raise SettingsError("baseImage", base, "ami-... on AWS, or empty for Canonical's Ubuntu 24.04")


def given(settings: Settings, provider: aws.Provider) -> Golden:
    """An image that was baked before. Raises UsageError if it does not exist or is not one of ours."""
    name = settings.image
    ids = aws.ec2.GetAmiIdsFilterArgs(name="image-id", values=[name])
    if not aws.ec2.get_ami_ids(owners=["self"], filters=[ids], opts=asking(provider)).ids:
        raise UsageError(f"image = {name!r}: this account has no such image in {region(settings)}")
    one = aws.ec2.GetAmiFilterArgs(name="image-id", values=[name])
    baked_from = aws.ec2.get_ami(owners=["self"], filters=[one], opts=asking(provider)).tags.get(IMAGE_TAG)
    if baked_from is None:
        why = f"was not baked by Trainyard (it has no tag {IMAGE_TAG}); image: bake makes one"
        raise UsageError(f"image = {name!r}: {why}")
    return Golden(baked_from, name)


def bake(settings: Settings, ground: Ground) -> Golden:
    """Declare all stages; `image.ami` resolves once the gates are passed."""
    baked_from, where = key(settings), region(settings)
    machine = _builder(settings, baked_from, ground)
    # The gates are dynamic resources and call AWS themselves, so they take no Pulumi provider.
    gate: dict[str, pulumi.Input[str]] = {"region": where, "instance": machine.id}
    scripts = brought(settings)
    with_scripts: dict[str, pulumi.Input[str]] = {**gate, **({"scripts": scripts} if scripts else {})}
    baked = Baked(f"baked-{baked_from}", with_scripts, pulumi.ResourceOptions())
    sealed = Sealed(f"sealed-{baked_from}", gate, pulumi.ResourceOptions(depends_on=[baked]))
    # Make the image while the builder is stopped: the disk is complete, and a sealed machine never boots again.
    stopped = aws.ec2transitgateway.InstanceState(
        f"stopped-{baked_from}",
        instance_id=machine.id,
        state="stopped",
        opts=pulumi.ResourceOptions(provider=ground.provider, depends_on=[sealed]),
    )
    image = aws.ec2.AmiFromInstance(
        f"image-{baked_from}",
        name=named(settings, baked_from),
        description=f"Trainyard {baked_from}: {settings.profile}, {settings.collectives}",
        source_instance_id=machine.id,
        snapshot_without_reboot=False,
        tags={**titled(settings, baked_from), IMAGE_TAG: baked_from},
        opts=pulumi.ResourceOptions(
            provider=ground.provider,
            depends_on=[stopped],
            custom_timeouts=pulumi.CustomTimeouts(create=IMAGING, delete="20m"),
        ),
    )
    # The image's snapshot does not get the image's tags, and is what costs.
    for tag, value in {**tags(settings), IMAGE_TAG: baked_from}.items():
        aws.ec2.Tag(
            f"snapshot-{tag.removeprefix('trainyard-')}-{baked_from}",
            resource_id=image.root_snapshot_id,
            key=tag,
            value=value,
            opts=pulumi.ResourceOptions(provider=ground.provider),
        )
    return Golden(baked_from, image.id)


def _builder(settings: Settings, baked_from: str, ground: Ground) -> aws.ec2.Instance:
    assert ground.network.edge is not None and ground.security.builder is not None  # both exist wherever one is baked
    newest = None if settings.cloud.base_image else aws.ssm.get_parameter(name=UBUNTU, opts=asking(ground.provider))
    return aws.ec2.Instance(
        f"builder-{baked_from}",
        ami=newest.value if newest else settings.cloud.base_image,
        instance_type=builder_type(settings),
        subnet_id=ground.network.edge.id,
        associate_public_ip_address=True,
        vpc_security_group_ids=[ground.security.builder.id],
        iam_instance_profile=ground.access.profile,
        instance_initiated_shutdown_behavior="stop",
        user_data_base64=user_data.packed(builder_data(settings)),
        metadata_options=aws.ec2.InstanceMetadataOptionsArgs(
            http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
        ),
        root_block_device=aws.ec2.InstanceRootBlockDeviceArgs(
            volume_type="gp3", volume_size=disk_gb(settings), encrypted=True, delete_on_termination=True
        ),
        tags=titled(settings, "builder"),
        volume_tags={**tags(settings), **titled(settings, "builder")},
        opts=pulumi.ResourceOptions(
            provider=ground.provider,
            depends_on=ground.first,
            ignore_changes=KEPT,
            custom_timeouts=pulumi.CustomTimeouts(create="20m", delete="20m"),
        ),
    )


def disk_gb(settings: Settings) -> int:
    """GB of the builder's disk, and so the least that a node's disk can have."""
    return CUDA_DISK_GB if settings.profile == "cuda" else BUILDER_DISK_GB


def builder_data(settings: Settings) -> str:
    """The builder's user data: the bake, and the timer that powers the builder off if nobody else does."""
    machine = machine_types.for_nodes(machine_types.of(settings))
    alone = not brought(settings)
    return user_data.for_bake(settings, key(settings), last_resort=END, machine=machine, alone=alone)


def brought(settings: Settings) -> str:
    """The scripts, if the gate brings them to the builder (see builder.bring): those of a profile with a folder of its
    own are too large for user data. Empty: they are in it."""
    return user_data.archive(settings) if settings.profile in user_data.OVERLAYS else ""


def builder_type(settings: Settings) -> str:
    """A smaller size of the nodes' own family, so that the image is verified on their processor. Without GPUs."""
    wanted = machine_types.of(settings)
    if wanted.gpus:
        return GPU_BUILDER
    series = wanted.name.partition(".")[0]
    family = [entry for entry in machine_types.TYPES.values() if entry.name.partition(".")[0] == series]
    return next(entry.name for entry in family if entry.cores >= min(BUILDER_CORES, wanted.cores))
