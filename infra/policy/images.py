"""Images: a machine boots the same one tomorrow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from infra.policy.machines import INSTANCE, TEMPLATE, VM
from infra.policy.rule import Props, Resource, Rule, Stack, StackRule, block

KEYS = ("ami", "imageId")
_AMI = re.compile(r"ami-[0-9a-f]{8,17}")
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")


def _reference(resource: Resource) -> Iterator[Props]:
    image = block(resource.props, "storageProfile").get("imageReference")
    if image is not None:
        yield image


def _pinned_version(image: Props) -> str | None:
    if image.get("id") is not None:
        version = str(image["id"]).rsplit("/versions/", 1)[-1]
        where = "imageReference.id must end in /versions/ and a version"
    else:
        version = str(image.get("version"))
        where = "imageReference.version must be a version"
    return None if _VERSION.fullmatch(version) else f"{where} such as 24.04.202511010, and never 'latest'"


def _ami(resource: Resource) -> Iterator[Any]:
    yield from (resource.props[key] for key in KEYS if resource.props.get(key) is not None)


def _pinned_ami(image: Any) -> str | None:
    if _AMI.fullmatch(str(image)):
        return None
    return f"the image must be given as ami-..., not as {image}: what a parameter names is another one tomorrow"


def _origins(stack: Stack) -> Iterator[tuple[Resource, tuple[Any, bool, tuple[str, ...]]]]:
    """Each machine's image, and whether what it is tomorrow is this stack's own doing."""
    own = {resource.urn for resource in stack.resources}
    for machine in stack.of(INSTANCE, TEMPLATE):
        for key in KEYS:
            if machine.props.get(key) is not None:
                made_here = bool(own & machine.links.get(key, frozenset()))
                yield machine, (machine.props[key], made_here or key in machine.ignores, stack.images)


def _kept(part: tuple[Any, bool, tuple[str, ...]]) -> str | None:
    image, settled, named = part
    if settled or str(image) in named:
        return None
    return (
        f"the image {image} is neither made by this stack nor named in its settings, and may be another one at the"
        " next `up`: set baseImage, or let the machine keep its own (ignore_changes)"
    )


RULES = (
    Rule(
        name="image-version-pinned",
        description="A virtual machine's image is one version, named.",
        numbers=("no CKV or CIS number: Azure Well-Architected Framework, OE:05",),
        parts={VM: _reference},
        problem=_pinned_version,
    ),
    Rule(
        name="ami-pinned",
        description="An instance's image is one image, named.",
        numbers=("no CKV or CIS number; CKV_AWS_386 is its sibling for look-ups by name",),
        parts={INSTANCE: _ami, TEMPLATE: _ami},
        problem=_pinned_ami,
    ),
)
STACK_RULES = (
    StackRule(
        name="ami-does-not-drift",
        description="An image that was looked up is not looked up again for a machine that has one.",
        numbers=("no CKV or CIS number",),
        parts=_origins,
        problem=_kept,
    ),
)
