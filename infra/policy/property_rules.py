"""The table of rules that check one resource at a time.

Each row: the rule's name, its description with sources, the types with the parts to check, and the check of each part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infra.policy import resource_types as types
from infra.policy.conditions import (
    Condition,
    absent_or,
    at,
    equals,
    first,
    holds_some,
    includes,
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
from infra.policy.rule import DeclaredResource, Parts, PolicyRule


def _settles(block: str) -> Parts:
    """The instance itself, if it has the block: otherwise the launch template's applies, which is checked there."""
    return lambda resource: (
        []
        if resource.props.get(block) is None and resource.props.get("launchTemplate") is not None
        else [resource.props]
    )


def _instance_volumes(resource: DeclaredResource) -> Iterator[Any]:
    yield from (props.get("rootBlockDevice") for props in _settles("rootBlockDevice")(resource))
    yield from values(resource.props, "ebsBlockDevices[]")


def _template_volumes(resource: DeclaredResource) -> Iterator[Any]:
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
    if pinned.allows(image.get("id" if by_id else "version")):
        return None
    return f"imageReference.{where} such as 24.04.202511010, and never 'latest'"


VERSION = r"[0-9]+\.[0-9]+\.[0-9]+"
METADATA = {types.INSTANCE: _settles("metadataOptions"), types.TEMPLATE: itself}
VOLUMES: dict[str, Parts] = {types.INSTANCE: _instance_volumes, types.TEMPLATE: _template_volumes}
DISKS = {types.VM: at("storageProfile.osDisk", "storageProfile.dataDisks[]")}
GROUP_RULES = dict.fromkeys((types.GROUP_RULE, types.INGRESS, types.EGRESS), itself)
EKS = {types.EKS: itself}
CONTROL_PLANE = ("api", "audit", "authenticator", "controllerManager", "scheduler")
VM, ACCOUNT = {types.VM: itself}, {types.ACCOUNT: itself}
IMAGES = at("ami?", "imageId?")
LINUX, FIRMWARE = "osProfile.linuxConfiguration", "securityProfile.uefiSettings"
MANAGED = "every disk must be a managed one, which Azure encrypts: managedDisk, and no vhd"
DEFAULTS = ("", "Managed by Pulumi", "Managed by Terraform")
"""Descriptions that the providers fill in."""
described = Condition("must say what it is for", lambda text: text is not None and str(text).strip() not in DEFAULTS)
PRIVATE = must("publicAccess", absent_or(same("None")))  # not given: private

RULES = (
    PolicyRule(
        "imdsv2-only",
        "The metadata service answers only those who hold a session token: else all that can fetch a URL has the role "
        "(CKV_AWS_79, CIS AWS 5.0 5.7).",
        METADATA,
        must("metadataOptions.httpTokens", equals("required")),
    ),
    PolicyRule(
        "metadata-one-hop",
        "The metadata service's answers do not leave the node: no container or proxy on it gets them (CKV_AWS_341).",
        METADATA,
        # Must be explicit: the default is the image's, and some images have 2.
        must("metadataOptions.httpPutResponseHopLimit", equals(1)),
    ),
    PolicyRule(
        "no-passwords",
        "A virtual machine is opened by SSH keys alone (CKV_AZURE_1, CKV_AZURE_149, CKV_AZURE_178).",
        # Without osProfile the image is a specialised one, with its own logins.
        {types.VM: lambda resource: [resource.props] if resource.props.get("osProfile") is not None else []},
        first(
            must("osProfile.adminPassword", is_absent),
            must(f"{LINUX}.disablePasswordAuthentication", is_on),
            must(f"{LINUX}.ssh.publicKeys", holds_some),
        ),
    ),
    PolicyRule(
        "trusted-launch",
        "A virtual machine boots what its firmware has verified (CIS Azure 3.0 8.11).",
        VM,
        first(
            must("securityProfile.securityType", same("TrustedLaunch", "ConfidentialVM")),
            must(f"{FIRMWARE}.secureBootEnabled", is_on),
            must(f"{FIRMWARE}.vTpmEnabled", is_on),
        ),
    ),
    PolicyRule(
        "volumes-encrypted",
        "What is on a node's volumes is encrypted at rest (CKV_AWS_3, CKV_AWS_8, CIS AWS 5.0 5.1.1).",
        {**VOLUMES, types.VOLUME: itself},
        must("encrypted", is_on, "every volume must say encrypted: true"),
    ),
    PolicyRule(
        "volumes-die-with-node",
        "A node that ends leaves no volume behind, which would be billed on (AWS Config ec2-volume-inuse-check).",
        VOLUMES,
        # Must be explicit: in a launch template the default is the image's.
        must("deleteOnTermination", is_on, "every volume must say deleteOnTermination: true"),
    ),
    PolicyRule(
        "disks-managed",
        "What is on a virtual machine's disks is encrypted at rest, as all managed disks are "
        "(CKV_AZURE_92, CIS Azure 3.0 8.2).",
        DISKS,
        first(must("vhd", is_absent, MANAGED), must("managedDisk", is_given, MANAGED)),
    ),
    PolicyRule(
        "disks-die-with-node",
        "A virtual machine that is deleted leaves no disk behind, which would be billed on "
        "(no CKV or CIS number: leftovers are a cost).",
        DISKS,
        must("deleteOption", same("Delete"), "every disk must say deleteOption: Delete"),
    ),
    PolicyRule(
        "image-version-pinned",
        "A virtual machine's image is one version, named "
        "(no CKV or CIS number: OE:05 of the Azure Well-Architected Framework).",
        {types.VM: at("storageProfile.imageReference?")},
        _pinned_version,
    ),
    PolicyRule(
        "ami-pinned",
        "An instance's image is one image, named: what a parameter names is another one tomorrow "
        "(no CKV or CIS number; CKV_AWS_386 is its sibling for look-ups by name).",
        {types.INSTANCE: IMAGES, types.TEMPLATE: IMAGES},
        must("", matches(r"ami-[0-9a-f]{8,17}"), "the image must be given as ami-..., not as {value}"),
    ),
    PolicyRule(
        "security-group-descriptions",
        "Every security group and every rule in it says what it is for (CKV_AWS_23).",
        {types.GROUP: at("", "ingress[]", "egress[]"), **GROUP_RULES},
        must("description", described),
    ),
    PolicyRule(
        "subnets-behind-a-firewall",
        "Every subnet has a network security group (CKV2_AZURE_31).",
        {types.SUBNET: itself, types.VNET: at("subnets[]")},
        must("networkSecurityGroup.id", is_given, "a subnet must have a networkSecurityGroup"),
    ),
    PolicyRule(
        "storage-https-only",
        "A storage account answers over TLS only (CKV_AZURE_3, CIS Azure 3.0 4.1).",
        ACCOUNT,
        must("enableHttpsTrafficOnly", is_on),
    ),
    PolicyRule(
        "storage-tls-1.2",
        "A storage account speaks TLS 1.2 or newer (CKV_AZURE_44, CIS Azure 3.0 4.15).",
        ACCOUNT,
        must("minimumTlsVersion", same("TLS1_2", "TLS1_3")),
    ),
    PolicyRule(
        "storage-no-public-blobs",
        "No blob of a storage account can be made public (CKV_AZURE_190, CKV2_AZURE_47, CIS Azure 3.0 4.17).",
        ACCOUNT,
        must("allowBlobPublicAccess", is_off),
    ),
    PolicyRule(
        "storage-no-shared-key",
        "A storage account knows identities only, no key that whoever has it may use "
        "(CKV2_AZURE_40, CIS Azure 4.0 10.3.1.3).",
        ACCOUNT,
        must("allowSharedKeyAccess", is_off),
    ),
    PolicyRule(
        "storage-closed-by-default",
        "A storage account lets in only the networks that it names (CKV_AZURE_35).",
        ACCOUNT,
        must("networkRuleSet.defaultAction", same("Deny")),
    ),
    PolicyRule(
        "kubernetes-control-plane-logs",
        "What was asked of a Kubernetes API, by whom, is logged, and so is what the control plane did (CKV_AWS_37).",
        EKS,
        must("enabledClusterLogTypes", includes(*CONTROL_PLANE)),
    ),
    PolicyRule(
        "kubernetes-secrets-encrypted",
        "A cluster's secrets are encrypted with a key of the account's own (CKV_AWS_58).",
        EKS,
        first(
            must("encryptionConfig.provider.keyArn", is_given),
            must("encryptionConfig.resources", includes("secrets")),
        ),
    ),
    PolicyRule(
        "kubernetes-access-entries",
        "Who may use a cluster's API is declared, and nobody may for having made it "
        "(no CKV or CIS number: the older aws-auth map is seen nowhere but in the cluster).",
        EKS,
        first(
            must("accessConfig.authenticationMode", equals("API")),
            must("accessConfig.bootstrapClusterCreatorAdminPermissions", is_off),
        ),
    ),
    PolicyRule(
        "keys-rotate",
        "A key's material is replaced once a year (CKV_AWS_7, CIS AWS 5.0 3.6).",
        {types.KEY: itself},
        must("enableKeyRotation", is_on),
    ),
    PolicyRule(
        "images-fixed-and-scanned",
        "A pushed image stays what it was under its tag, and is scanned for known holes (CKV_AWS_51, CKV_AWS_163).",
        {types.REPOSITORY: itself},
        first(
            must("imageTagMutability", equals("IMMUTABLE")),
            must("imageScanningConfiguration.scanOnPush", is_on),
        ),
    ),
    PolicyRule("containers-private", "No container is public (CKV_AZURE_34).", {types.CONTAINER: itself}, PRIVATE),
)
