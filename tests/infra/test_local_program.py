"""The Pulumi program under mocks: what it declares, from which settings, and the inventory that comes out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from aws_mocks import Amazon
from aws_xeon_program import OWN
from azure_mocks import Azure
from bad_settings import as_text
from local_mocks import Machines
from program_recorder import HOST_KEY, Declared, Kind, Ran, run

from infra import inventory, user_data
from infra.clouds.local import host
from infra.clusters.local import image_id
from infra.config import stack_file
from infra.config.settings import ROOT, load
from infra.prices import table

Program = Callable[..., Ran]


@pytest.fixture
def program(good: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Program:
    """Run infra/__main__.py with these keys, on a machine that has what it takes."""
    monkeypatch.setattr(host, "check_machine", lambda: None)
    monkeypatch.setattr(host, "check", lambda settings, image: None)

    def local(*, stack: str = "local", preview: bool = False, **keys: object) -> Ran:
        raw = {**good, **{key: str(value) for key, value in keys.items()}}
        return run(raw, Machines(), stack=stack, preview=preview)

    return local


def nodes(ran: Ran) -> dict[str, Declared]:
    return {node.name: node for node in ran.of("Node")}


@pytest.mark.parametrize("count", [1, 3, 64])
def test_as_many_nodes_as_asked_for(program: Program, count: int) -> None:
    ran = program(nodes=count)
    assert list(nodes(ran)) == [f"node{number}" for number in range(1, count + 1)]
    assert set(ran.declared) == {"stack-id", "network", "image", *nodes(ran)}
    assert [node.name for node in ran.cluster.nodes] == list(nodes(ran))
    assert ran.outputs["hourlyUsd"] == 0, "the machine is the user's own"


def test_addresses_are_fixed_and_those_of_the_settings(program: Program) -> None:
    ran = program(nodes=3, cidr="172.20.4.0/23")
    assert [node.inputs["address"] for node in ran.of("Node")] == [f"172.20.4.{n}/23" for n in (10, 11, 12)]
    assert [node.private_ip for node in ran.cluster.nodes] == [f"172.20.4.{n}" for n in (10, 11, 12)]
    assert ran["network"].inputs["cidr"] == "172.20.4.0/23"


def test_another_number_of_nodes_changes_no_other_node(program: Program) -> None:
    few, many = program(nodes=2), program(nodes=5)
    for name in nodes(few):
        assert few[name] == many[name]
    assert few["image"] == many["image"]


def test_the_inventory_is_the_contract(program: Program, key_file: Path) -> None:
    ran = program(nodes=2, memoryMb=1536, stack="local")
    cluster = ran.cluster
    assert (cluster.name, cluster.launcher, cluster.interface) == ("local", "mpirun", "host0")
    assert cluster.identity_file == str(key_file.with_suffix(""))
    assert [node.role for node in cluster.nodes] == ["head", "worker"]
    assert {node.host_key for node in cluster.nodes} == {HOST_KEY}
    assert [node.console for node in cluster.nodes] == ["/var/log/node1", "/var/log/node2"]
    assert {node.memory_gb for node in cluster.nodes} == {1.5}
    assert inventory.from_json(inventory.to_json(cluster)) == cluster


KINDS: dict[str, Callable[[], Kind]] = {"local": Machines, "aws-xeon": Amazon, "azure-xeon": Azure}
"""What each kind of cluster's providers answer; the stack of that name is its example."""


@pytest.mark.parametrize("cluster", KINDS)
def test_every_kind_of_cluster_has_an_inventory_of_the_same_shape(
    program: Program, good: dict[str, str], monkeypatch: pytest.MonkeyPatch, cluster: str
) -> None:
    """The verbs know no clouds: what `local` tells them of a node, every cluster does."""
    monkeypatch.setattr(table, "line", lambda *_, **__: table.PriceLine("thing", 1, "thing", 0.1, "2026-11-21"))
    raw = {**good, **stack_file.read(cluster), "publicKey": good["publicKey"], **OWN, "nodes": "3"}
    ran, model = run(raw, KINDS[cluster](), stack=cluster), program(nodes=3)
    assert ran.outputs.keys() == model.outputs.keys()
    found, like = json.loads(ran.outputs["inventory"]), json.loads(model.outputs["inventory"])
    assert found.keys() == like.keys()
    for key in ("schema", "kind", "launcher", "ssh_user", "identity_file"):
        assert found[key] == like[key]
    assert [node.keys() for node in found["nodes"]] == [node.keys() for node in like["nodes"]]
    for node, other in zip(found["nodes"], like["nodes"], strict=True):
        assert {key: type(value) for key, value in node.items()} == {key: type(value) for key, value in other.items()}
        for key in ("name", "role", "host_key"):
            assert node[key] == other[key]
        assert node["memory_gb"] > 0 and node["cores_per_slot"] > 0 and node["slots"] > 0
    assert ran.cluster.name == cluster
    assert cluster == "local" or (ran.cluster.hourly_usd > 0 and "://" in ran.cluster.data_url)


def test_a_node_needs_the_network_and_the_image_and_no_other_node(program: Program) -> None:
    needs = {name: found.needs for name, found in program(nodes=3).declared.items()}
    first = {"stack-id": set(), "network": {"stack-id"}, "image": {"stack-id"}}
    assert needs == {**first, **{f"node{n}": {"network", "image"} for n in (1, 2, 3)}}


def test_a_node_is_told_its_own_name_and_role(program: Program) -> None:
    ran = program(nodes=2)
    settings = load("local", ran.raw)
    image = image_id(settings)
    assert ran["image"].inputs["image"] == image
    for index, (name, role) in enumerate((("node1", "head"), ("node2", "worker"))):
        wanted = user_data.for_node(settings, image, name, role, baked=True)
        assert ran.of("Node")[index].inputs["user_data"] == wanted


def test_an_image_that_was_asked_for_is_not_baked(program: Program) -> None:
    ran = program(nodes=1, image="0123456789abcdef")
    assert (ran["image"].inputs["image"], ran["image"].inputs["user_data"]) == ("0123456789abcdef", "")
    assert ran["node1"].inputs["image"] == "0123456789abcdef"


def test_nothing_secret_goes_into_any_resource(program: Program) -> None:
    ran = program(nodes=1)
    assert "PRIVATE KEY" not in repr(ran.declared) + repr(ran.outputs)


def test_a_preview_declares_the_same(program: Program) -> None:
    assert list(nodes(program(nodes=2, preview=True))) == ["node1", "node2"]


@pytest.mark.parametrize("keys", [{"nodes": 0}, {"cidr": "8.8.8.0/24"}, {"profile": "x"}, {"nodse": 3}], ids=str)
def test_bad_settings_are_one_line_and_declare_nothing(program: Program, keys: dict[str, object]) -> None:
    with pytest.raises(pulumi.RunError) as caught:
        program(**keys)
    assert str(caught.value).startswith(f"{next(iter(keys))} = ") and len(str(caught.value).splitlines()) == 1


# --- Pulumi.yaml and the settings say the same ---


def declared() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]
    return loaded


def test_every_default_has_its_type_and_can_be_used(key_file: Path) -> None:
    types = {"string": str, "integer": int, "boolean": bool}
    for key, spec in declared().items():
        assert type(spec["default"]) is types[spec["type"]], key
    defaults = {key: as_text(spec["default"]) for key, spec in declared().items()}
    load("local", {**defaults, "publicKey": str(key_file)})


@pytest.mark.parametrize("path", sorted((ROOT / "stacks").glob("Pulumi.*.yaml")), ids=lambda path: path.name)
def test_every_stack_of_ours_can_be_used(path: Path, key_file: Path) -> None:
    stack = path.name.removeprefix("Pulumi.").removesuffix(".yaml")
    load(stack, {**stack_file.read(stack), "publicKey": str(key_file), **OWN})
