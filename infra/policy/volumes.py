"""Volumes: encrypted, and gone with their node."""

from __future__ import annotations

from collections.abc import Iterator

from infra.policy.machines import INSTANCE, TEMPLATE, VM
from infra.policy.rule import Props, Resource, Rule, block, is_on, items, same

VOLUME = "aws:ebs/volume:Volume"
DISK = "azure-native:compute:Disk"


def _of_instance(resource: Resource) -> Iterator[Props]:
    """Its volumes; the root volume is a launch template's where that is the one that describes it."""
    root = resource.props.get("rootBlockDevice")
    if root is not None:
        yield root
    elif resource.props.get("launchTemplate") is None:
        yield {}
    yield from items(resource.props, "ebsBlockDevices")


def _of_template(resource: Resource) -> Iterator[Props]:
    mappings = items(resource.props, "blockDeviceMappings")
    if not mappings:
        yield {}  # the image's own mapping, of which nothing is known
    for mapping in mappings:
        if mapping.get("virtualName") is None and mapping.get("noDevice") is None:
            yield block(mapping, "ebs")


def _alone(resource: Resource) -> Iterator[Props]:
    yield resource.props


def _disks(resource: Resource) -> Iterator[Props]:
    storage = block(resource.props, "storageProfile")
    yield block(storage, "osDisk")
    yield from items(storage, "dataDisks")


def _encrypted(volume: Props) -> str | None:
    return None if is_on(volume.get("encrypted")) else "every volume must say encrypted: true"


def _managed(disk: Props) -> str | None:
    # Azure encrypts every managed disk at rest; a blob of one's own (vhd) is outside of that.
    if disk.get("vhd") is not None or disk.get("managedDisk") is None:
        return "every disk must be a managed one, which Azure encrypts: managedDisk, and no vhd"
    return None


def _dies(volume: Props) -> str | None:
    # Not left to the default: in a launch template that is the image's.
    if is_on(volume.get("deleteOnTermination")):
        return None
    return "every volume must say deleteOnTermination: true, or it is paid for when its node is gone"


def _deleted(disk: Props) -> str | None:
    if same(disk.get("deleteOption"), "Delete"):
        return None
    return "every disk must say deleteOption: Delete, or it is paid for when its node is gone"


RULES = (
    Rule(
        name="volumes-encrypted",
        description="What is on a node's volumes is encrypted at rest.",
        numbers=("CKV_AWS_3", "CKV_AWS_8", "CIS AWS 5.0 5.1.1"),
        parts={INSTANCE: _of_instance, TEMPLATE: _of_template, VOLUME: _alone},
        problem=_encrypted,
    ),
    Rule(
        name="disks-managed",
        description="What is on a virtual machine's disks is encrypted at rest, as all managed disks are.",
        numbers=("CKV_AZURE_92", "CIS Azure 3.0 8.2"),
        parts={VM: _disks},
        problem=_managed,
    ),
    Rule(
        name="volumes-die-with-node",
        description="A node that ends leaves no volume behind.",
        numbers=("AWS Config ec2-volume-inuse-check",),
        parts={INSTANCE: _of_instance, TEMPLATE: _of_template},
        problem=_dies,
    ),
    Rule(
        name="disks-die-with-node",
        description="A virtual machine that is deleted leaves no disk behind.",
        numbers=("no CKV or CIS number: leftovers are a cost",),
        parts={VM: _disks},
        problem=_deleted,
    ),
)
