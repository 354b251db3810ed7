"""A stack that was made before its providers' modules moved: its state still gives providers that delete it."""

from __future__ import annotations

import base64
import importlib

import dill
import pytest

PICKLED = [
    ("infra.aws.gate", "BakedProvider", "infra.clouds.aws.builder"),
    ("infra.aws.gate", "SealedProvider", "infra.clouds.aws.builder"),
    ("infra.aws.host_key", "HostKeyProvider", "infra.clouds.aws.host_key"),
    ("infra.aws.room", "ReservedProvider", "infra.clouds.aws.capacity"),
    ("infra.aws.room", "ReleasedProvider", "infra.clouds.aws.capacity"),
    ("infra.azure.budget", "MonthProvider", "infra.clouds.azure.budget"),
    ("infra.azure.command", "CommandProvider", "infra.clouds.azure.run_command"),
    ("infra.azure.stop", "StopProvider", "infra.clouds.azure.builder_stop"),
    ("infra.local.image", "ImageProvider", "infra.clouds.local.image"),
    ("infra.local.network", "NetworkProvider", "infra.clouds.local.network"),
    ("infra.local.nodes", "NodeProvider", "infra.clouds.local.nodes"),
    ("infra.stack_id", "StackIdProvider", "infra.state.stack_id"),
]
"""Every dynamic provider of before: its module then, its name, its module now."""
FROM_A_STATE = "gASVKQAAAAAAAACMEWluZnJhLmxvY2FsLm5vZGVzlIwMTm9kZVByb3ZpZGVylJOUKYGULg=="
"""The `__provider` of a node in the state of a local stack of before, as Pulumi wrote it."""


def pickled(module: str, name: str) -> bytes:
    """What dill made of an object without attributes whose class can be imported (protocol 4)."""
    names = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() + b"\x94" for text in (module, name))
    body = names + b"\x93\x94)\x81\x94."
    return b"\x80\x04\x95" + len(body).to_bytes(8, "little") + body


@pytest.mark.parametrize("module, name, now", PICKLED, ids=[f"{module}.{name}" for module, name, _ in PICKLED])
def test_a_provider_in_an_old_state_is_the_one_of_today(module: str, name: str, now: str) -> None:
    wanted = getattr(importlib.import_module(now), name)
    assert type(dill.loads(pickled(module, name))) is wanted


def test_the_pickles_above_are_as_pulumi_wrote_them() -> None:
    assert base64.b64decode(FROM_A_STATE) == pickled("infra.local.nodes", "NodeProvider")


def test_what_never_was_is_still_not_there() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("infra.local.nothing")
