"""Runs the program of aws-xeon under mocks, and finds what it declares."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable
from typing import Any

import pulumi
import pytest
from aws_mocks import Amazon
from bad_settings import as_text
from program_recorder import Declared, Ran

from infra.clusters import aws_xeon
from infra.config.settings import Settings, load
from infra.prices import table

STACK = "aws-xeon"
OWN = {"adminCidr": "203.0.113.7/32", "owner": "me", "alertEmail": "me@example.org"}
"""What the stack's file leaves to its user."""

Program = Callable[..., Ran]


def cent(_cloud: str, _region: str, sku: str, count: float = 1, *, what: str = "") -> table.PriceLine:
    return table.PriceLine(f"{sku}: {what}", count, "thing", 0.01 * count, "2026-11-21")


def machines(ran: Ran) -> list[Declared]:
    """The nodes: instances, but for the builder."""
    return [found for found in ran.of("ec2/instance:Instance") if found.name.startswith("node")]


def one(ran: Ran, type_: str) -> Declared:
    (found,) = ran.of(type_)
    return found


def unpacked(packed: str) -> str:
    return gzip.decompress(base64.b64decode(packed)).decode()


def settings(keys: dict[str, str], **changed: object) -> Settings:
    return load(STACK, {**keys, **{key: as_text(value) for key, value in changed.items()}})


def stage(ran: Ran) -> dict[str, str]:
    """builder, baked, sealed, stopped, image -> the logical name, which ends in the image's key."""
    names = ("builder", "baked", "sealed", "stopped", "image")
    return {
        what: name
        for what in names
        for name in ran.declared
        if name.startswith(f"{what}-") and len(name) > 16 + len(what)
    }


def skus(keys: dict[str, str], **changed: object) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in aws_xeon.bill(settings(keys, **changed)):
        sku = line.what.partition(":")[0]
        found[sku] = found.get(sku, 0) + line.count
    return found


def refusal(program: Program, **changed: object) -> str:
    """The one line that it is refused with; nothing but the provider may be declared by then."""
    monitors: list[Any] = []
    with pytest.MonkeyPatch.context() as patch, pytest.raises(pulumi.RunError) as caught:
        original = Amazon.outputs

        def outputs(self: Amazon, args: Any) -> Any:
            monitors.append(args.typ)
            return original(self, args)

        patch.setattr(Amazon, "outputs", outputs)
        program(**changed)
    assert set(monitors) <= {"pulumi:providers:aws", "pulumi-python:dynamic/trainyard:StackId"}
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)
