"""Machines: the metadata service, how one logs in, how one boots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infra.policy.rule import Props, Resource, Rule, Stack, StackRule, block, is_on, items, same, whole

INSTANCE = "aws:ec2/instance:Instance"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
VM = "azure-native:compute:VirtualMachine"


def _metadata(resource: Resource) -> Iterator[Props]:
    """The options in force: an instance that says nothing has its launch template's, which is judged itself."""
    options = resource.props.get("metadataOptions")
    if options is not None:
        yield options
    elif resource.props.get("launchTemplate") is None:
        yield {}


def _imdsv2(options: Props) -> str | None:
    if options.get("httpTokens") == "required":
        return None
    return (
        "metadataOptions.httpTokens must be 'required': without, any process that can fetch a URL has the node's role"
    )


def _one_hop(options: Props) -> str | None:
    # Not left to the default: that is the image's, and some images say 2.
    if options.get("httpPutResponseHopLimit") == 1:
        return None
    return "metadataOptions.httpPutResponseHopLimit must be 1: a container or a proxy on the node must not reach it"


def _own_template(links: Any) -> str | None:
    return None if links else "launchTemplate must be one that this stack declares: no rule has seen another's"


def _templates(stack: Stack) -> Iterator[tuple[Resource, bool]]:
    own = {template.urn for template in stack.of(TEMPLATE)}
    for instance in stack.of(INSTANCE):
        if instance.props.get("launchTemplate") is not None:
            yield instance, bool(own & instance.links.get("launchTemplate", frozenset()))


def _password(vm: Props) -> str | None:
    profile = block(vm, "osProfile")
    if profile.get("adminPassword") is not None:
        return "osProfile.adminPassword must not be set: the key opens the node, and nothing else"
    linux = block(profile, "linuxConfiguration")
    # A VM without a profile boots a specialised image, and has the logins that the image has.
    if profile and not is_on(linux.get("disablePasswordAuthentication")):
        return "osProfile.linuxConfiguration.disablePasswordAuthentication must be true"
    if profile and not items(block(linux, "ssh"), "publicKeys"):
        return "osProfile.linuxConfiguration.ssh.publicKeys must hold a key"
    return None


def _trusted(vm: Props) -> str | None:
    security = block(vm, "securityProfile")
    firmware = block(security, "uefiSettings")
    if not (
        same(security.get("securityType"), "TrustedLaunch") or same(security.get("securityType"), "ConfidentialVM")
    ):
        return "securityProfile.securityType must be TrustedLaunch"
    if not (is_on(firmware.get("secureBootEnabled")) and is_on(firmware.get("vTpmEnabled"))):
        return "securityProfile.uefiSettings must have secureBootEnabled and vTpmEnabled"
    return None


RULES = (
    Rule(
        name="imdsv2-only",
        description="The metadata service answers only those who hold a session token.",
        numbers=("CKV_AWS_79", "CIS AWS 5.0 5.7"),
        parts={INSTANCE: _metadata, TEMPLATE: _metadata},
        problem=_imdsv2,
    ),
    Rule(
        name="metadata-one-hop",
        description="The metadata service's answers do not leave the node.",
        numbers=("CKV_AWS_341",),
        parts={INSTANCE: _metadata, TEMPLATE: _metadata},
        problem=_one_hop,
    ),
    Rule(
        name="no-passwords",
        description="A virtual machine is opened by SSH keys alone.",
        numbers=("CKV_AZURE_1", "CKV_AZURE_149", "CKV_AZURE_178"),
        parts={VM: whole},
        problem=_password,
    ),
    Rule(
        name="trusted-launch",
        description="A virtual machine boots what its firmware has verified.",
        numbers=("CIS Azure 3.0 8.11",),
        parts={VM: whole},
        problem=_trusted,
    ),
)
STACK_RULES = (
    StackRule(
        name="own-launch-template",
        description="An instance's launch template is this stack's own, as it decides what the instance does not say.",
        numbers=("CKV_AWS_79", "CKV_AWS_341", "CKV_AWS_8"),
        parts=_templates,
        problem=_own_template,
    ),
)
