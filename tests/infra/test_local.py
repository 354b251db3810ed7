"""infra.clouds.local without root: what the providers decide, and the cache of images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from baked_image import IMAGE, bake
from hypothesis import given
from hypothesis import strategies as st

from infra.clouds.local import image, image_cache, network, paths
from infra.clouds.local.image import ImageProvider
from infra.clouds.local.network import NetworkProvider
from infra.clouds.local.nodes import NodeProvider
from infra.clouds.local.nspawn import NspawnMachine
from infra.errors import OperationError
from infra.state import operation

STACKS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True)

NODE = {
    "stack": "local",
    "name": "node1",
    "address": "10.77.0.10/24",
    "bridge": "ty0123456789",
    "image": IMAGE,
    "user_data": "#cloud-config",
    "cpus": 1,
    "memory_mb": 2048,
    "host_key": None,
    "console": None,
    "alive": None,
}
MADE = {**NODE, "host_key": "ssh-ed25519 AAAA", "console": "/console.log", "alive": True}


@given(stack=STACKS, other=STACKS)
def test_a_bridge_has_a_name_that_a_link_can_have_and_no_other_stack_has(stack: str, other: str) -> None:
    assert len(network.bridge_name(stack)) <= 15
    assert (network.bridge_name(stack) == network.bridge_name(other)) == (stack == other)


def test_everything_of_a_stack_is_below_its_own_directory(home: Path) -> None:
    assert paths.node("local", "node1") == home / "stacks/local/nodes/node1"
    assert paths.build("local", IMAGE) == home / f"stacks/local/build/{IMAGE}"
    paths.node("local", "node1").mkdir(parents=True)
    paths.tidy("local")
    assert paths.node("local", "node1").exists(), "what something is in stays"
    paths.node("local", "node1").rmdir()
    paths.tidy("local")
    assert not paths.stack("local").exists()


# --- what a change means ---


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every machine runs."""
    monkeypatch.setattr(NspawnMachine, "is_alive", lambda self: True)


@pytest.mark.parametrize("key", ["stack", "name", "address", "bridge", "image", "user_data"])
def test_a_node_with_another_identity_is_another_node(key: str, alive: None) -> None:
    found = NodeProvider().diff("local-node1", MADE, {**NODE, key: "other"})
    assert (found.changes, found.replaces, found.delete_before_replace) == (True, [key], True)


@pytest.mark.parametrize("limits", [{"cpus": 2}, {"memory_mb": 4096}, {"cpus": 2, "memory_mb": 512}], ids=str)
def test_limits_change_on_a_running_node(limits: dict[str, int], alive: None) -> None:
    found = NodeProvider().diff("local-node1", MADE, {**NODE, **limits})
    assert (found.changes, found.replaces) == (True, [])


def test_an_unchanged_node_is_left_alone(alive: None) -> None:
    found = NodeProvider().diff("local-node1", {**MADE, "cpus": 1.0, "memory_mb": 2048.0}, NODE)
    assert (found.changes, found.replaces) == (False, []), "numbers come back as floats"


def test_a_dead_node_is_replaced(alive: None) -> None:
    assert NodeProvider().diff("local-node1", {**MADE, "alive": False}, NODE).replaces == ["alive"]


def test_a_node_that_died_since_the_last_look_is_replaced(home: Path) -> None:
    assert NodeProvider().diff("local-node1", {**MADE, "stack": "gone"}, {**NODE, "stack": "gone"}).replaces == [
        "alive"
    ]


def test_a_node_of_which_nothing_is_there_is_gone(home: Path) -> None:
    assert NodeProvider().read("local-node1", {**MADE, "stack": "no-such-stack"}).id == ""


def test_a_network_of_another_range_is_another_network() -> None:
    olds = {"stack": "local", "cidr": "10.77.0.0/24", "bridge": "ty0123456789"}
    same = NetworkProvider().diff("ty", olds, {**olds, "bridge": None})
    other = NetworkProvider().diff("ty", olds, {**olds, "cidr": "10.78.0.0/24", "bridge": None})
    assert (same.changes, other.changes, other.replaces, other.delete_before_replace) == (False, True, ["cidr"], True)


def test_an_image_is_replaced_only_by_one_of_another_content(home: Path) -> None:
    olds = {"stack": "local", "image": IMAGE, "user_data": "old", "software": "{}"}
    assert not ImageProvider().diff(IMAGE, olds, {**olds, "user_data": "new"}).changes
    found = ImageProvider().diff(IMAGE, olds, {**olds, "image": "f" * 16})
    assert (found.replaces, found.delete_before_replace) == (["image"], False), "the old nodes stay until it is baked"


def test_an_image_in_the_cache_is_taken_and_never_deleted(home: Path) -> None:
    bake(home, IMAGE)
    props = {"stack": "local", "image": IMAGE, "user_data": "", "software": None}
    made = ImageProvider().create(props)
    assert made.outs and made.id == IMAGE and json.loads(made.outs["software"]) == {"torch": "2.13.0"}
    assert ImageProvider().read(IMAGE, props).id == IMAGE
    ImageProvider().delete(IMAGE, props)
    assert image.baked() == [IMAGE]
    assert ImageProvider().read("f" * 16, props).id == ""


def test_an_image_that_is_asked_for_and_not_there_says_which_are(home: Path) -> None:
    bake(home, IMAGE)
    props = {"stack": "local", "image": "f" * 16, "user_data": "", "software": None}
    with pytest.raises(OperationError, match=f"not in .*; there are: {IMAGE}"):
        ImageProvider().create(props)


def test_an_image_without_its_record_is_none(home: Path) -> None:
    bake(home, IMAGE)
    (home / "images" / IMAGE / "image.json").unlink()
    assert image.baked() == [] and image.record(IMAGE) is None
    with pytest.raises(OperationError):
        image.layers(IMAGE)


# --- the cache ---


def test_prune_removes_what_no_node_was_booted_from(home: Path) -> None:
    bake(home, "a" * 16, "base1")
    bake(home, "b" * 16, "base1")
    bake(home, "c" * 16, "base2")
    spec = paths.node("local", "node1") / "spec.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"image": "a" * 16}))
    assert [row["used_by"] for row in image_cache.listing()] == [["local"], [], []]
    known = {"base": "base3"}  # of a version that had no ids of its own
    for name, stack in (("d" * 16, "local"), ("e" * 16, "")):
        bake(home, name, "base3")
        (home / "images" / name / "image.json").write_text(json.dumps(known))
        if stack:
            spec = paths.node(stack, "node2") / "spec.json"
            spec.parent.mkdir(parents=True)
            spec.write_text(json.dumps({"image": name}))
    assert image.record("e" * 16) is None and image.outdated() == ["d" * 16, "e" * 16]
    removed = image_cache.prune()
    assert f"image {'e' * 16} (of a version whose nodes were root on this machine)" in removed
    assert image.outdated() == ["d" * 16] and (home / "base/base3").is_dir(), "a node runs on it"
    removed.remove(f"image {'e' * 16} (of a version whose nodes were root on this machine)")
    assert [line.split(" (")[0] for line in removed] == [f"image {'b' * 16}", f"image {'c' * 16}", "base base2"]
    assert image.baked() == ["a" * 16] and (home / "base/base1").is_dir()
    assert image_cache.prune() == []


def test_prune_does_not_take_the_base_from_under_a_bake(home: Path) -> None:
    (home / "base/base1/rootfs").mkdir(parents=True)
    for ask in (image_cache.unused, image_cache.prune):
        with operation.lock(paths.images(), exclusive=True), pytest.raises(operation.LockBusy):
            ask()
    assert (home / "base/base1/rootfs").is_dir()
