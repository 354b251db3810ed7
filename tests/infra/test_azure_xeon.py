"""azure-xeon without an account: what the program declares, from which settings, and its inventory."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path

import pulumi
import pytest
from azure_mocks import BAKED, SUBSCRIPTION, Program, named, nodes, unpacked
from program_recorder import HOST_KEY, STACK_ID
from sample_inputs import public_key

from infra import inventory
from infra.clouds.azure import machine_types
from infra.clouds.azure import names as base
from infra.clusters import azure_xeon
from infra.config.settings import ROOT, Settings
from infra.errors import UsageError
from infra.prices import table

pytest_plugins = ["azure_program"]


def test_one_provider_and_the_stacks_tags_on_everything_taggable(program: Program) -> None:
    ran = program(maxHours=12)
    whose = {"trainyard-stack": "xeon", "trainyard-owner": "me", "trainyard-id": STACK_ID}
    tags = {**whose, "trainyard-max-hours": "12"}
    untagged = {"Subnet", "RoleDefinition", "RoleAssignment", "Budget", "BlobContainer"}
    untagged |= {"BlobServiceProperties", "ManagementPolicy"}
    for found in ran.declared.values():
        if found.type.startswith("azure-native:"):
            assert found.provider == "azure", found.name
            assert found.inputs.get("tags", {}) == ({} if found.type.rsplit(":", 1)[-1] in untagged else tags), (
                found.name
            )
    assert {call.provider for call in ran.monitor.invoked} == {"azure"}


def test_nothing_secret_goes_into_any_resource(program: Program) -> None:
    ran = program()
    text = repr([found.inputs for found in ran.declared.values() if not found.type.startswith("pulumi-python")])
    text += repr(ran.outputs) + "".join(unpacked(ran[name].inputs) for name in (*nodes(ran), named(ran, "builder")))
    assert "PRIVATE KEY" not in text
    assert not re.search(
        r"(?i)\b(admin)?_?password\b(?! *Authentication)[\"']?\s*[:=]", text.replace("lock_passwd", "")
    )


def test_a_storage_account_is_one_stacks_of_one_subscription() -> None:
    names = {base.account_name(s, stack) for s in ("one", "two") for stack in ("a", "a-b", "ab", "x" * 32, "x" * 31)}
    assert len(names) == 10 and all(re.fullmatch("[a-z0-9]{3,24}", name) for name in names)
    assert base.account_name("one", "a") == base.account_name("one", "a")


def test_a_preview_declares_the_same_with_the_accounts_name_known(program: Program) -> None:
    made, seen = program(nodes=2), program(nodes=2, preview=True)
    assert set(made.declared) == set(seen.declared)
    assert seen["data"].inputs["accountName"] == made["data"].inputs["accountName"]


def test_the_inventory_has_the_shape_of_the_local_one(program: Program) -> None:
    cluster = program().cluster
    local = inventory.SshCluster(name="local", nodes=(inventory.Node(name="node1", private_ip="10.77.0.10"),))
    found, wanted = (json.loads(inventory.to_json(of)) for of in (cluster, local))
    assert list(found) == list(wanted)
    assert {tuple(node) for node in found["nodes"]} == {tuple(wanted["nodes"][0])}
    assert inventory.from_json(inventory.to_json(cluster)) == cluster
    assert [node.role for node in cluster.nodes] == ["head", "worker", "worker"]
    assert {(node.slots, node.cores_per_slot, node.memory_gb) for node in cluster.nodes} == {(1, 16, 128.0)}
    assert {node.host_key for node in cluster.nodes} == {HOST_KEY}
    account = base.account_name(SUBSCRIPTION, f"xeon-{STACK_ID}")
    assert cluster.data_url == f"abfs://data@{account}.dfs.core.windows.net"


def test_the_bill_has_everything_that_is_billed(program: Program, settings: Callable[..., Settings]) -> None:
    def bill(**keys: object) -> dict[str, float]:
        found = azure_xeon.bill(settings(**keys))
        return {line.what: line.count for line in found}

    complete = bill()
    assert complete["nodes"] == complete["their disks"] == 3 and complete["NAT gateway, without its traffic"] == 1
    assert {"disk of the builder, which is off", "snapshot, at most", "golden image, at most"} < set(complete)
    assert set(complete) - set(bill(image=BAKED)) == {
        "disk of the builder, which is off",
        "snapshot, at most",
        "golden image, at most",
    }
    everybody = bill(publicNodes="all")
    assert everybody["public addresses of nodes"] == 3 and "address of the builder" in everybody
    assert program().cluster.hourly_usd == round(table.total(azure_xeon.bill(settings())), 4) > 0
    spot, regular = (table.total(azure_xeon.bill(settings(spot=text))) for text in ("true", "false"))
    assert spot != regular


@pytest.mark.parametrize("gb, tier", [(64, "P6"), (65, "P10"), (250, "P15"), (256, "P15"), (257, "P20"), (4095, "P50")])
def test_a_disk_is_billed_as_the_next_larger_one(gb: int, tier: str) -> None:
    assert machine_types.tier("Premium_LRS", gb) == tier


BAD = {
    "an unknown size": ({"instanceType": "Standard_D32_v6"}, "instanceType"),
    "an AWS type": ({"instanceType": "m7i.8xlarge"}, "instanceType"),
    "a zone's name": ({"zone": "use1-az4"}, "zone"),
    "more nodes than addresses": ({"cidr": "10.0.0.0/27", "nodes": 22}, "cidr"),
    "everybody as admin": ({"adminCidr": "0.0.0.0/0"}, "adminCidr"),
    "everybody as admin, IPv6": ({"adminCidr": "::/0"}, "adminCidr"),
    "a disk smaller than the image": ({"diskGb": 63}, "diskGb"),
    "a disk that Azure cannot boot from": ({"diskGb": 4096}, "diskGb"),
    "a base without a version": ({"baseImage": "Canonical:ubuntu-24_04-lts:server:latest"}, "baseImage"),
    "an AWS image as the base": ({"baseImage": "ami-0123456789abcdef0"}, "baseImage"),
    "somebody else's image": ({"image": BAKED.replace("trainyard-0123456789abcdef", "win11")}, "image"),
}


@pytest.mark.parametrize("keys, named_key", BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line_before_anything_is_declared(
    program: Program, keys: dict[str, object], named_key: str
) -> None:
    with pytest.raises(pulumi.RunError) as caught:
        program(**keys)
    line = str(caught.value)
    assert line.startswith(f"{named_key} = ") and ": must be " in line and len(line.splitlines()) == 1


def test_a_stack_with_too_long_a_name_is_one_line(program: Program) -> None:
    with pytest.raises(pulumi.RunError, match="stack = "):
        program(stack="x" * 33)


def test_a_region_without_prices_is_one_line(program: Program) -> None:
    with pytest.raises(pulumi.RunError, match="no price for Standard_D32s_v6 in us-east-1: priced are: eastus"):
        program(region="us-east-1")


def test_a_key_that_azure_refuses_is_refused_here(settings: Callable[..., Settings], tmp_path: Path) -> None:
    path = tmp_path / "id.pub"
    path.write_text(public_key("ecdsa-sha2-nistp256"))
    with pytest.raises(UsageError, match=r"publicKey = .*ssh-ed25519 or ssh-rsa"):
        azure_xeon.check(settings(publicKey=path))


MODULES = {"compute", "network", "storage", "resources", "authorization", "managedidentity", "consumption"}


@pytest.mark.parametrize("path", sorted((ROOT / "infra/clouds/azure").glob("*.py")), ids=lambda path: path.name)
def test_no_nested_argument_is_a_plain_dictionary(path: Path) -> None:
    """Its keys would be checked by nobody: a typo is sent to Azure as it is."""
    for call in ast.walk(ast.parse(path.read_text())):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            if not (isinstance(call.func.value, ast.Name) and call.func.value.id in MODULES):
                continue
            for keyword in call.keywords:
                if keyword.arg not in ("tags", "notifications"):  # mappings by their nature
                    assert not any(isinstance(part, ast.Dict) for part in ast.walk(keyword.value)), keyword.arg
