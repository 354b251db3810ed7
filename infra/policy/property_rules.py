"""The table of rules that check one resource at a time.

Each row: the rule's name, its description, its sources, the types with the parts to check, and the check of each part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infra.policy import resource_types as types
from infra.policy.conditions import (
    absent_or,
    at,
    equals,
    first,
    holds_some,
    is_absent,
    is_given,
    is_off,
    is_on,
    itself,
    matches,
    must,
    same,
    values,
)
from infra.policy.rule import Parts, Resource, Rule

VERSION = r"[0-9]+\.[0-9]+\.[0-9]+"


def _unless_of_template(block: str) -> Parts:
    """A block of an instance. If it is missing, the launch template's applies, which is checked there."""

    def parts(resource: Resource) -> Iterator[Any]:
        if resource.props.get(block) is not None or resource.props.get("launchTemplate") is None:
            yield resource.props.get(block)

    return parts


def _instance_volumes(resource: Resource) -> Iterator[Any]:
    yield from _unless_of_template("rootBlockDevice")(resource)
    yield from values(resource.props, "ebsBlockDevices[]")


def _template_volumes(resource: Resource) -> Iterator[Any]:
    mappings = list(values(resource.props, "blockDeviceMappings[]"))
    if not mappings:
        yield None  # the image's own mapping applies, which is not declared here
    for mapping in mappings:
        if mapping.get("virtualName") is None and mapping.get("noDevice") is None:
            yield mapping.get("ebs")


def _pinned_version(image: Any) -> str | None:
    by_id = image.get("id") is not None
    pinned = matches(f".*/versions/{VERSION}" if by_id else VERSION)
    where = "id must end in /versions/ and a version" if by_id else "version must be a version"
    if pinned(image.get("id" if by_id else "version")):
        return None
    return f"imageReference.{where} such as 24.04.202511010, and never 'latest'"


def _says_what_for(description: Any) -> bool:
    """Whether there is a description other than the providers' default text."""
    return description is not None and str(description).strip() not in ("", "Managed by Pulumi", "Managed by Terraform")


METADATA = {types.INSTANCE: _unless_of_template("metadataOptions"), types.TEMPLATE: at("metadataOptions")}
VOLUMES: dict[str, Parts] = {types.INSTANCE: _instance_volumes, types.TEMPLATE: _template_volumes}
DISKS = {types.VM: at("storageProfile.osDisk", "storageProfile.dataDisks[]")}
GROUP_RULES = (types.GROUP_RULE, types.INGRESS, types.EGRESS)
IMAGES = at("ami?", "imageId?")
MANAGED = "every disk must be a managed one, which Azure encrypts: managedDisk, and no vhd"
OS, LINUX, SECURITY = "osProfile", "linuxConfiguration", "securityProfile"
FIRMWARE = f"{SECURITY}.uefiSettings must have secureBootEnabled and vTpmEnabled"

RULES = (
    Rule(
        "imdsv2-only",
        "The metadata service answers only those who hold a session token.",
        ("CKV_AWS_79", "CIS AWS 5.0 5.7"),
        METADATA,
        must(
            "httpTokens",
            equals("required"),
            "metadataOptions.httpTokens must be 'required': without, any process that can fetch a URL has the"
            " node's role",
        ),
    ),
    Rule(
        "metadata-one-hop",
        "The metadata service's answers do not leave the node.",
        ("CKV_AWS_341",),
        METADATA,
        must(
            "httpPutResponseHopLimit",
            equals(1),  # must be explicit: the default is the image's, and some images have 2
            "metadataOptions.httpPutResponseHopLimit must be 1: a container or a proxy on the node must not reach it",
        ),
    ),
    Rule(
        "no-passwords",
        "A virtual machine is opened by SSH keys alone.",
        ("CKV_AZURE_1", "CKV_AZURE_149", "CKV_AZURE_178"),
        {types.VM: at("osProfile?")},  # without osProfile the image is a specialised one, with its own logins
        first(
            must(
                "adminPassword",
                is_absent,
                f"{OS}.adminPassword must not be set: the key opens the node, and nothing else",
            ),
            must(
                f"{LINUX}.disablePasswordAuthentication",
                is_on,
                f"{OS}.{LINUX}.disablePasswordAuthentication must be true",
            ),
            must(f"{LINUX}.ssh.publicKeys", holds_some, f"{OS}.{LINUX}.ssh.publicKeys must hold a key"),
        ),
    ),
    Rule(
        "trusted-launch",
        "A virtual machine boots what its firmware has verified.",
        ("CIS Azure 3.0 8.11",),
        {types.VM: at(SECURITY)},
        first(
            must(
                "securityType",
                same("TrustedLaunch", "ConfidentialVM"),
                f"{SECURITY}.securityType must be TrustedLaunch",
            ),
            must("uefiSettings.secureBootEnabled", is_on, FIRMWARE),
            must("uefiSettings.vTpmEnabled", is_on, FIRMWARE),
        ),
    ),
    Rule(
        "volumes-encrypted",
        "What is on a node's volumes is encrypted at rest.",
        ("CKV_AWS_3", "CKV_AWS_8", "CIS AWS 5.0 5.1.1"),
        {**VOLUMES, types.VOLUME: itself},
        must("encrypted", is_on, "every volume must say encrypted: true"),
    ),
    Rule(
        "volumes-die-with-node",
        "A node that ends leaves no volume behind.",
        ("AWS Config ec2-volume-inuse-check",),
        VOLUMES,
        must(
            "deleteOnTermination",
            is_on,  # must be explicit: in a launch template the default is the image's
            "every volume must say deleteOnTermination: true, or it is paid for when its node is gone",
        ),
    ),
    Rule(
        "disks-managed",
        "What is on a virtual machine's disks is encrypted at rest, as all managed disks are.",
        ("CKV_AZURE_92", "CIS Azure 3.0 8.2"),
        DISKS,
        first(must("vhd", is_absent, MANAGED), must("managedDisk", is_given, MANAGED)),
    ),
    Rule(
        "disks-die-with-node",
        "A virtual machine that is deleted leaves no disk behind.",
        ("no CKV or CIS number: leftovers are a cost",),
        DISKS,
        must(
            "deleteOption",
            same("Delete"),
            "every disk must say deleteOption: Delete, or it is paid for when its node is gone",
        ),
    ),
    Rule(
        "image-version-pinned",
        "A virtual machine's image is one version, named.",
        ("no CKV or CIS number: Azure Well-Architected Framework, OE:05",),
        {types.VM: at("storageProfile.imageReference?")},
        _pinned_version,
    ),
    Rule(
        "ami-pinned",
        "An instance's image is one image, named.",
        ("no CKV or CIS number; CKV_AWS_386 is its sibling for look-ups by name",),
        {types.INSTANCE: IMAGES, types.TEMPLATE: IMAGES},
        must(
            "",
            matches(r"ami-[0-9a-f]{8,17}"),
            "the image must be given as ami-..., not as {value}: what a parameter names is another one tomorrow",
        ),
    ),
    Rule(
        "security-group-descriptions",
        "Every security group and every rule in it says what it is for.",
        ("CKV_AWS_23",),
        {types.GROUP: at("", "ingress[]", "egress[]"), **dict.fromkeys(GROUP_RULES, itself)},
        must("description", _says_what_for, "must have a description that says what it is for"),
    ),
    Rule(
        "subnets-behind-a-firewall",
        "Every subnet has a network security group.",
        ("CKV2_AZURE_31",),
        {types.SUBNET: itself, types.VNET: at("subnets[]")},
        must("networkSecurityGroup.id", is_given, "a subnet must have a networkSecurityGroup"),
    ),
    Rule(
        "storage-https-only",
        "A storage account answers over TLS only.",
        ("CKV_AZURE_3", "CIS Azure 3.0 4.1"),
        {types.ACCOUNT: itself},
        must("enableHttpsTrafficOnly", is_on, "enableHttpsTrafficOnly must be true"),
    ),
    Rule(
        "storage-tls-1.2",
        "A storage account speaks TLS 1.2 or newer.",
        ("CKV_AZURE_44", "CIS Azure 3.0 4.15"),
        {types.ACCOUNT: itself},
        must("minimumTlsVersion", same("TLS1_2", "TLS1_3"), "minimumTlsVersion must be TLS1_2 or newer"),
    ),
    Rule(
        "storage-no-public-blobs",
        "No blob of a storage account can be made public.",
        ("CKV_AZURE_190", "CKV2_AZURE_47", "CIS Azure 3.0 4.17"),
        {types.ACCOUNT: itself},
        must("allowBlobPublicAccess", is_off, "allowBlobPublicAccess must be false"),
    ),
    Rule(
        "storage-no-shared-key",
        "A storage account knows identities only, no key that whoever has it may use.",
        ("CKV2_AZURE_40", "CIS Azure 4.0 10.3.1.3"),
        {types.ACCOUNT: itself},
        must("allowSharedKeyAccess", is_off, "allowSharedKeyAccess must be false"),
    ),
    Rule(
        "storage-closed-by-default",
        "A storage account lets in only the networks that it names.",
        ("CKV_AZURE_35",),
        {types.ACCOUNT: at("networkRuleSet")},
        must(
            "defaultAction",
            same("Deny"),
            "networkRuleSet.defaultAction must be Deny: who comes in is named by network as well",
        ),
    ),
    Rule(
        "containers-private",
        "No container is public.",
        ("CKV_AZURE_34",),
        {types.CONTAINER: itself},
        must("publicAccess", absent_or(same("None")), "publicAccess must be None"),  # the default: private
    ),
)
