"""The nodes on Azure and their network: what each is, and what changes them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import yaml
from azure_mocks import Program, named, nodes, only, unpacked

from infra import user_data
from infra.clouds.azure import image
from infra.clouds.azure import names as base
from infra.clusters import azure_xeon
from infra.config.settings import Settings

pytest_plugins = ["azure_program"]


def test_a_node_keeps_its_image_and_user_data_unless_its_replacement_is_asked_for(program: Program) -> None:
    kept, replaced = program(nodes=1)["node1"], program(nodes=1, replaceNodes="true")["node1"]
    assert kept.ignore_changes == ("osProfile", "storageProfile.imageReference")
    assert replaced.ignore_changes == ()
    changing = {"osProfile.customData", "osProfile.linuxConfiguration.ssh", "storageProfile.imageReference.id"}
    assert changing <= set(replaced.replace_on_changes)
    assert kept.delete_before_replace and replaced.delete_before_replace, "the address is one"


def test_addresses_are_fixed_and_those_of_the_settings(program: Program) -> None:
    ran = program(nodes=3, cidr="172.20.4.0/23")
    cards = {name: ran[f"{name}-interface"].inputs for name in nodes(ran)}
    found = {name: card["ipConfigurations"][0] for name, card in cards.items()}
    assert [entry["privateIPAddress"] for entry in found.values()] == [f"172.20.4.{n}" for n in (10, 11, 12)]
    assert {entry["privateIPAllocationMethod"] for entry in found.values()} == {"Static"}
    assert {card["enableAcceleratedNetworking"] for card in cards.values()} == {True}
    assert only(ran, "VirtualNetwork")["addressSpace"]["addressPrefixes"] == ["172.20.0.0/16"]
    assert only(ran, "Subnet")["addressPrefix"] == "172.20.4.0/23"


def test_another_number_of_nodes_changes_no_other_node(program: Program) -> None:
    few, many = program(nodes=2), program(nodes=5)
    for name in few.declared:
        assert few[name].inputs == many[name].inputs, name


def test_a_node_is_a_trusted_machine_that_only_keys_open(program: Program, raw: dict[str, str]) -> None:
    for name, node in nodes(program()).items():
        assert node["securityProfile"] == {
            "securityType": "TrustedLaunch",
            "uefiSettings": {"secureBootEnabled": True, "vTpmEnabled": True},
        }
        system = node["osProfile"]
        assert (system["computerName"], system["adminUsername"]) == (name, "trainyard")
        assert system["linuxConfiguration"]["disablePasswordAuthentication"] is True
        (key,) = system["linuxConfiguration"]["ssh"]["publicKeys"]
        assert key["path"] == f"/home/{base.USER}/.ssh/authorized_keys"
        assert key["keyData"] == Path(raw["publicKey"]).read_text().strip()
        assert node["storageProfile"]["osDisk"]["deleteOption"] == "Delete"
        # An interface that goes with its machine is missed by the machine that replaces it.
        assert node["networkProfile"]["networkInterfaces"][0]["deleteOption"] == "Detach"
        assert node["proximityPlacementGroup"]["id"].endswith("/placement")


def test_a_node_is_told_its_own_name_and_role(program: Program, settings: Callable[..., Settings]) -> None:
    own, made = settings(), nodes(program())
    for index, role in enumerate(("head", "worker", "worker")):
        wanted = user_data.for_node(own, image.key(own), f"node{index + 1}", role, baked=True)
        assert unpacked(made[f"node{index + 1}"]) == wanted
    builder = program()[named(program(), "builder")].inputs
    assert unpacked(builder) == user_data.for_bake(own, image.key(own), last_resort=image.last_resort())
    assert yaml.safe_load(unpacked(builder))["bootcmd"][0] == ["bash", "-c", image.last_resort()]
    assert "bootcmd" not in yaml.safe_load(unpacked(made["node1"])), "a node's end is the limits'"


def test_user_data_is_below_azures_limit(program: Program) -> None:
    ran = program()
    for name in (*nodes(ran), named(ran, "builder")):
        sent = ran[name].inputs["osProfile"]["customData"]
        assert len(base64.b64decode(sent, validate=True)) < 64 * 1024 and len(sent) < 64 * 1024


def test_disks_and_threads_follow_the_size(program: Program) -> None:
    new, old = (nodes(program(nodes=1, instanceType=size))["node1"] for size in ("Standard_D32s_v6", "Standard_D32_v5"))
    assert new["storageProfile"]["diskControllerType"] == "NVMe"
    assert new["storageProfile"]["osDisk"]["managedDisk"]["storageAccountType"] == "Premium_LRS"
    assert new["hardwareProfile"]["vmSizeProperties"] == {"vCPUsPerCore": 1}
    assert old["storageProfile"]["diskControllerType"] == "SCSI"
    assert old["storageProfile"]["osDisk"]["managedDisk"]["storageAccountType"] == "StandardSSD_LRS"
    assert "vmSizeProperties" not in old["hardwareProfile"]


def test_spot_nodes_pay_at_most_the_price_on_demand_and_keep_their_disk(program: Program) -> None:
    spot, regular = (nodes(program(nodes=1, spot=text))["node1"] for text in ("true", "false"))
    assert (spot["priority"], spot["evictionPolicy"], spot["billingProfile"]) == (
        "Spot",
        "Deallocate",
        {"maxPrice": -1},
    )
    assert regular["priority"] == "Regular" and "evictionPolicy" not in regular


def test_a_spot_node_asks_for_no_notice_before_deletions(program: Program) -> None:
    """Azure refuses one for Spot, and the eviction's notice comes without: a Scheduled Event, 30 s before."""
    for name, node in nodes(program(nodes=1, spot="true")).items():
        assert "scheduledEventsProfile" not in node, name


def test_azure_has_the_metrics_of_machines_by_itself(program: Program, settings: Callable[..., Settings]) -> None:
    """The key changes nothing and costs nothing."""
    on, off = program(monitoring="true"), program()
    assert {name: found.inputs for name, found in on.declared.items()} == {
        name: found.inputs for name, found in off.declared.items()
    }
    assert azure_xeon.bill(settings(monitoring="true")) == azure_xeon.bill(settings())


def test_a_size_without_certain_amx_says_so_at_preview(program: Program) -> None:
    (warning,) = program(instanceType="Standard_D32_v5", preview=True).warnings()
    assert "Standard_D32_v5" in warning and "lottery" in warning and "bf16" in warning
    assert program(preview=True).warnings() == []


def test_only_the_admin_and_the_nodes_get_in(program: Program) -> None:
    rules = {rule["name"]: rule for rule in only(program(), "NetworkSecurityGroup")["securityRules"]}
    let_in = {name: rule for name, rule in rules.items() if rule["access"] == "Allow"}
    assert {(r["sourceAddressPrefix"], r["destinationPortRange"]) for r in let_in.values()} == {
        ("203.0.113.7/32", "22"),
        ("10.0.0.0/24", "*"),
    }
    last = max(rules.values(), key=lambda rule: rule["priority"])
    assert (last["access"], last["sourceAddressPrefix"], last["destinationPortRange"]) == ("Deny", "*", "*")
    assert {rule["direction"] for rule in rules.values()} == {"Inbound"}
    assert all(rule["description"] for rule in rules.values())
    subnet = only(program(), "Subnet")
    assert subnet["networkSecurityGroup"]["id"].endswith("/security") and subnet["defaultOutboundAccess"] is False


def test_the_head_alone_is_public_and_the_others_go_out_through_nat(program: Program) -> None:
    ran = program(nodes=3)
    assert {found.name for found in ran.of(":PublicIPAddress")} == {"node1-address", "nat-address"}
    assert {found.inputs["sku"]["name"] for found in ran.of(":PublicIPAddress")} == {"Standard"}
    assert {found.inputs["publicIPAllocationMethod"] for found in ran.of(":PublicIPAddress")} == {"Static"}
    assert only(ran, "Subnet")["natGateway"]["id"].endswith("/nat")
    head = ran.cluster.nodes[0]
    assert ran.cluster.jump_host == head.ssh_host != ""
    assert [node.address for node in ran.cluster.nodes[1:]] == ["10.0.0.11", "10.0.0.12"]


def test_one_node_has_no_nat_gateway_to_pay_for(program: Program, settings: Callable[..., Settings]) -> None:
    """It has an address of its own. The builder, which has none there, gets one."""
    ran = program(nodes=1)
    assert ran.of(":NatGateway") == [] and "natGateway" not in only(ran, "Subnet")
    assert {found.name for found in ran.of(":PublicIPAddress")} == {"node1-address", f"{named(ran, 'builder')}-address"}
    card = ran[f"{named(ran, 'builder')}-interface"].inputs["ipConfigurations"][0]
    assert card["publicIPAddress"]["id"].endswith(f"{named(ran, 'builder')}-address")
    bill = {line.what: line.count for line in azure_xeon.bill(settings(nodes=1))}
    assert not {"NAT gateway, without its traffic", "its address"} & set(bill)
    assert bill["address of the builder"] == 1 and bill["public addresses of nodes"] == 1


def test_one_node_that_becomes_four_stays_as_it_is(program: Program) -> None:
    """Subnet and builder's interface change in place, as Azure can; no machine does."""
    one, four = program(nodes=1), program(nodes=4)
    assert only(four, "Subnet")["natGateway"]["id"].endswith("/nat")
    changed = {name for name in one.declared if name in four.declared and one[name].inputs != four[name].inputs}
    assert changed == {"subnet", f"{named(one, 'builder')}-interface"}
    assert set(one.declared) - set(four.declared) == {f"{named(one, 'builder')}-address"}


def test_all_public_by_config(program: Program) -> None:
    ran = program(nodes=3, publicNodes="all")
    addresses = {found.name for found in ran.of(":PublicIPAddress")}
    assert addresses == {"node1-address", "node2-address", "node3-address", f"{named(ran, 'builder')}-address"}
    assert ran.of(":NatGateway") == [] and "natGateway" not in only(ran, "Subnet")
    assert ran.cluster.jump_host == "" and all(node.ssh_host for node in ran.cluster.nodes)
