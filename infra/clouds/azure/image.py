"""The golden image, made in stages: builder -> gate -> seal -> stop -> snapshot -> version.

Every name contains the image's key or its start. A changed bootstrap has another key and so makes a new builder and
image; the old ones are deleted when the new image is there, and the nodes keep their disks. The builder is a small
machine of the nodes' series, because an image is baked for NVMe or SCSI disks, and a Trusted Launch machine cannot
change between them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import pulumi
from pulumi_azure_native import compute

from infra import user_data
from infra.clouds.azure import machine_types, vm
from infra.clouds.azure.access import Access
from infra.clouds.azure.builder_stop import Stopped
from infra.clouds.azure.names import Base, gallery_name
from infra.clouds.azure.network import Network, address, has_nat_gateway
from infra.clouds.azure.run_command import Command
from infra.config.settings import Settings
from infra.config.values import SettingsError

DEFAULT_BASE = "Canonical:ubuntu-24_04-lts:server:24.04.202609040"
"""Ubuntu 24.04 for Trusted Launch and NVMe. A fixed version: with `latest` the base would change unnoticed."""
NODES_PER_REPLICA = 20
"""Azure's recommendation: one image replica for each 20 machines that start at once."""
_SCRIPTS = Path(__file__).with_name("scripts")
_KEY = re.compile(r"/images/[^/]*-([0-9a-f]{16})/versions/")
_URN = re.compile(r"[A-Za-z0-9_-]+:[A-Za-z0-9._-]+:[A-Za-z0-9._-]+:[0-9]+(\.[0-9]+){2}")


def script(name: str) -> str:
    """The text of a script in scripts/, which runs inside a machine."""
    return (_SCRIPTS / name).read_text()


def last_resort() -> str:
    """The script in the builder's user data that limits its life. Comments are removed: user data has a size limit."""
    program = (user_data.BOOTSTRAP / "azure-xeon/deallocate.py").read_text().rstrip()
    return user_data.without_comments(script("last_resort.sh").replace("@PROGRAM@", program))


def base_image(settings: Settings) -> str:
    """`publisher:offer:sku:version`. Raises SettingsError for another form, or without a version."""
    urn = settings.cloud.base_image or DEFAULT_BASE
    if not _URN.fullmatch(urn):
        form = f"publisher:offer:sku:version with a version of numbers, such as {DEFAULT_BASE}"
        raise SettingsError("baseImage", urn, form)
    return urn


def key(settings: Settings) -> str:
    """The image's key: computed from what is baked, or, for a given image, taken from its id."""
    if settings.image == "bake":
        # seal.sh and the builder's series (NVMe or SCSI) change the image, so both are part of the key.
        builder = machine_types.of(settings).builder
        return user_data.image_key(settings, base_image(settings), script("seal.sh"), builder)
    found = _KEY.search(settings.image)
    if found is None:
        form = "an image that a stack of ours has baked: .../images/trainyard-<key>/versions/1.0.0"
        raise SettingsError("image", settings.image, form)
    return found.group(1)


def replicas(settings: Settings) -> int:
    """Number of image replicas for the nodes."""
    return math.ceil(settings.nodes / NODES_PER_REPLICA)


@dataclass(frozen=True)
class Golden:
    """The image that the nodes are made from."""

    id: pulumi.Output[str]
    key: str
    made: tuple[pulumi.Resource, ...]
    """What a node depends on; empty for an image that already exists."""


def declare(base: Base, net: Network, own: Access) -> Golden:
    """Declare all stages of a bake, or refer to the image that the settings name."""
    settings, name = base.settings, key(base.settings)
    if settings.image != "bake":
        return Golden(pulumi.Output.from_input(settings.image), name, ())
    # Only its start: a name with the whole key could be longer than a machine's 64 characters.
    stage = name[:12]
    builder = _builder(base, net, own, stage, name)
    sealed = _sealed(base, builder, stage, name)
    version = _version(base, builder, _snapshot(base, builder, sealed, stage), stage, name)
    return Golden(version.id, name, (version,))


def _builder(base: Base, net: Network, own: Access, stage: str, name: str) -> compute.VirtualMachine:
    settings, size = base.settings, machine_types.of(base.settings)
    publisher, offer, sku, version = base_image(settings).split(":")
    logical = f"builder-{stage}"
    spec = vm.Spec(
        logical=logical,
        hostname="builder",
        size=size.builder,
        nvme=size.modern,
        image=compute.ImageReferenceArgs(publisher=publisher, offer=offer, sku=sku, version=version),
        storage="StandardSSD_LRS",
        disk_gb=machine_types.BUILDER_DISK_GB,
        user_data=user_data.packed(user_data.for_bake(settings, name, last_resort=last_resort())),
        # The bootstrap downloads packages: without a NAT gateway it needs a public address of its own.
        public=None if has_nat_gateway(settings) else address(base, f"{logical}-address"),
    )
    # Ignore changes of limits and SSH keys, which are not part of the image; everything that is changes the key.
    kept = ["osProfile", "hardwareProfile", "storageProfile.imageReference", "storageProfile.osDisk"]
    limit = pulumi.CustomTimeouts(create="30m")
    return vm.declare(
        base, spec, net.subnet, own, ignore_changes=kept, delete_before_replace=True, custom_timeouts=limit
    )


def _sealed(base: Base, builder: compute.VirtualMachine, stage: str, name: str) -> Stopped:
    """Wait for the bootstrap's record that the builder is ready, seal it (removes keys and identity), stop it."""

    def options(limit: str, *needed: pulumi.Resource) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(depends_on=list(needed), custom_timeouts=pulumi.CustomTimeouts(create=limit))

    def command(step: str, text: str, wanted: str, *needed: pulumi.Resource) -> Command:
        return Command(
            f"{step}-{stage}",
            options("2h", *needed),
            name=step,
            machine=builder.id,
            incarnation=builder.vm_id,
            location=base.location,
            script=text,
            seconds=5400,
            wanted=wanted,
            builder=True,
        )

    gate = command("gate", script("gate.sh"), name)  # the record must name the image that was asked for
    # Run the gate again: a builder that was stopped in between bakes again when it is started.
    again = f"bash -s <<'GATE' || exit 1\n{script('gate.sh')}GATE\n{script('seal.sh')}"
    seal = command("seal", again, "sealing", gate)
    ids = {"machine": builder.id, "incarnation": builder.vm_id}
    return Stopped(f"stop-{stage}", options("40m", seal), name=f"builder-{stage}", **ids)


def _snapshot(base: Base, builder: compute.VirtualMachine, sealed: Stopped, stage: str) -> compute.Snapshot:
    # The id from the name that we gave. Azure returns ids in varying case, and after a refresh another spelling would
    # look like another disk.
    disk_name = vm.disk_name(base, f"builder-{stage}")
    disk = pulumi.Output.concat(base.group.id, "/providers/Microsoft.Compute/disks/", disk_name)
    # A replaced builder's disk has the same name but needs a new snapshot, so the name includes the VM's own id.
    own = builder.vm_id.apply(lambda incarnation: base.name(f"snapshot-{stage}-{incarnation[:8]}"))
    return compute.Snapshot(
        f"snapshot-{stage}",
        snapshot_name=own,
        creation_data=compute.CreationDataArgs(create_option="Copy", source_resource_id=disk),
        incremental=True,
        hyper_v_generation="V2",
        sku=compute.SnapshotSkuArgs(name="Standard_LRS"),
        **base.common(depends_on=[sealed], custom_timeouts=pulumi.CustomTimeouts(create="60m")),
    )


def _definition(base: Base, gallery: compute.Gallery, stage: str, name: str) -> compute.GalleryImage:
    """A generalised Trusted Launch image of generation 2, for NVMe and SCSI sizes."""
    return compute.GalleryImage(
        f"definition-{stage}",
        gallery_image_name=f"trainyard-{name}",
        gallery_name=gallery.name,
        os_type=compute.OperatingSystemTypes.LINUX,
        os_state=compute.OperatingSystemStateTypes.GENERALIZED,
        hyper_v_generation="V2",
        architecture="x64",
        identifier=compute.GalleryImageIdentifierArgs(publisher="trainyard", offer=base.settings.stack, sku=name),
        features=[
            # Not TrustedLaunchSupported: the snapshot comes from a Trusted Launch machine and has its guest state.
            compute.GalleryImageFeatureArgs(name="SecurityType", value="TrustedLaunch"),
            compute.GalleryImageFeatureArgs(name="DiskControllerTypes", value="SCSI, NVMe"),
            compute.GalleryImageFeatureArgs(name="IsAcceleratedNetworkSupported", value="True"),
        ],
        **base.common(),
    )


def _version(
    base: Base, builder: compute.VirtualMachine, snapshot: compute.Snapshot, stage: str, name: str
) -> compute.GalleryImageVersion:
    gallery = compute.Gallery(
        "gallery",
        gallery_name=gallery_name(base.unique),
        description=f"Golden images of the Trainyard stack {base.settings.stack}",
        **base.common(),
    )
    definition = _definition(base, gallery, stage, name)
    source = compute.GalleryDiskImageSourceArgs(id=snapshot.id)
    region = compute.TargetRegionArgs(
        name=base.location, regional_replica_count=replicas(base.settings), storage_account_type="Standard_LRS"
    )
    return compute.GalleryImageVersion(
        f"image-{stage}",
        gallery_image_version_name="1.0.0",
        gallery_image_name=definition.name,
        gallery_name=gallery.name,
        storage_profile=compute.GalleryImageVersionStorageProfileArgs(
            os_disk_image=compute.GalleryOSDiskImageArgs(source=source)
        ),
        publishing_profile=compute.GalleryImageVersionPublishingProfileArgs(target_regions=[region]),
        safety_profile=compute.GalleryImageVersionSafetyProfileArgs(allow_deletion_of_replicated_locations=True),
        **base.common(
            # Replace the image only for another builder. No replace_on_changes on its source: a refresh brings Azure's
            # spelling of ids and its defaults, and an image takes an hour to make.
            replacement_trigger=builder.vm_id,
            delete_before_replace=True,
            # It usually takes 20 to 60 minutes.
            custom_timeouts=pulumi.CustomTimeouts(create="2h", update="2h", delete="60m"),
        ),
    )
