"""azure-xeon without an account: what the program declares, in which order, from which settings, and its inventory."""

from __future__ import annotations

import ast
import base64
import gzip
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from azure_mocks import GROUP, OWN_NAMES, SUBSCRIPTION, Azure, principal, vm_id
from program_recorder import HOST_KEY, STACK_ID, Declared, Ran, run
from sample_inputs import public_key

from infra import inventory, user_data
from infra.clouds.azure import access, data, image, machine_types
from infra.clouds.azure import names as base
from infra.clusters import azure_xeon
from infra.config import stack_file
from infra.config.settings import ROOT, Settings, load
from infra.errors import UsageError
from infra.prices import table

OWN = {"adminCidr": "203.0.113.7/32", "owner": "me", "alertEmail": "me@example.org"}
BAKED = (
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/trainyard-old/providers/Microsoft.Compute/galleries/trainyard_old"
    "/images/trainyard-0123456789abcdef/versions/1.0.0"
)
LIMITS = {
    "ResourceGroup": r"[\w.()-]{1,89}[\w()-]",
    "VirtualNetwork": r"[A-Za-z0-9][\w.-]{0,62}\w",
    "Subnet": r"[A-Za-z0-9][\w.-]{0,78}\w",
    "NetworkSecurityGroup": r"[A-Za-z0-9][\w.-]{0,78}\w",
    "PublicIPAddress": r"[A-Za-z0-9][\w.-]{0,78}\w",
    "NatGateway": r"[A-Za-z0-9][\w.-]{0,78}\w",
    "NetworkInterface": r"[A-Za-z0-9][\w.-]{0,78}\w",
    "VirtualMachine": r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}[A-Za-z0-9]",
    "ProximityPlacementGroup": r"[A-Za-z0-9][\w.-]{0,78}\w",
    "Snapshot": r"[A-Za-z0-9][\w.-]{0,78}\w",
    "Gallery": r"[A-Za-z0-9][A-Za-z0-9_.]{0,78}[A-Za-z0-9]",
    "GalleryImage": r"[A-Za-z0-9][\w.-]{0,78}[A-Za-z0-9]",
    "GalleryImageVersion": r"\d+\.\d+\.\d+",
    "StorageAccount": r"[a-z0-9]{3,24}",
    "BlobContainer": r"[a-z0-9]([a-z0-9-]{1,61}[a-z0-9])",
    "UserAssignedIdentity": r"[A-Za-z0-9][\w-]{2,127}",
    "BlobServiceProperties": "default",
    "ManagementPolicy": "default",
    "Budget": r"[\w-]{1,63}",
    "FlowLog": r"[A-Za-z0-9][\w.-]{0,78}\w",
    "RoleDefinition": r"[0-9a-f-]{36}",
    "RoleAssignment": r"[0-9a-f-]{36}",
}
"""What Azure allows as names: learn.microsoft.com, "Naming rules and restrictions for Azure resources"."""

Program = Callable[..., Ran]


class Prices(dict[tuple[str, str, str], dict[str, Any]]):
    """Every price of one region: powers of two, so that a sum says what is in it."""

    def __init__(self, region: str = "eastus") -> None:
        disks = [f"managed-disk-{letter}{number}" for letter in "PE" for number in (6, 10, 15, 20, 30, 40, 50)]
        sizes = [name + end for name in machine_types.SIZES for end in ("", "/spot")]
        rest = ["public-ip-standard", "nat-gateway", "snapshot-gb-month", "gallery-version-gb-month", "blob-gb-month"]
        for power, sku in enumerate((*rest, *sizes, *disks)):
            self["azure", region, sku] = {"usd_per_hour": 2.0**power / 2**16, "unit": "x", "as_of": "2026-11-21"}


@pytest.fixture
def raw(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The stack file as it is, and what its user adds."""
    monkeypatch.setattr(table, "_table", Prices)
    return {**stack_file.read("azure-xeon"), "publicKey": str(key_file), **OWN}


@pytest.fixture(scope="module")
def ran_before() -> dict[object, Ran]:
    return {}


@pytest.fixture
def program(raw: dict[str, str], ran_before: dict[object, Ran]) -> Program:
    """Run the program with these keys, or say what it declared when it ran with them before."""

    def start(*, stack: str = "xeon", preview: bool = False, **keys: object) -> Ran:
        own = {**raw, **{key: str(value) for key, value in keys.items()}}
        asked = (stack, preview, *own.items())
        if asked not in ran_before:
            ran_before[asked] = run(own, Azure(), stack=stack, preview=preview)
        return ran_before[asked]

    return start


@pytest.fixture
def settings(raw: dict[str, str]) -> Callable[..., Settings]:
    return lambda **keys: load("xeon", {**raw, **{key: str(value) for key, value in keys.items()}})


def only(ran: Ran, kind: str) -> dict[str, Any]:
    (found,) = ran.of(f":{kind}")
    return found.inputs


def named(ran: Ran, start: str) -> str:
    """The logical name that starts so; images have their key behind it."""
    (found,) = [name for name in ran.declared if re.fullmatch(f"{start}-[0-9a-f]{{12}}", name)]
    return found


def nodes(ran: Ran) -> dict[str, dict[str, Any]]:
    return {name: ran[name].inputs for name in ran.declared if re.fullmatch(r"node\d+", name)}


def unpacked(machine: dict[str, Any]) -> str:
    return gzip.decompress(base64.b64decode(machine["osProfile"]["customData"])).decode()


# --- the golden image as a stage ---


def test_an_image_is_made_of_a_builder_that_was_ready_sealed_and_off(program: Program) -> None:
    ran = program()
    chain = [named(ran, part) for part in ("builder", "gate", "seal", "stop", "snapshot", "image")]
    for earlier, later in itertools.pairwise(chain):
        assert earlier in ran[later].needs, f"{later} does not wait for {earlier}"
    assert {key for key in ran.declared if key.endswith(chain[0].removeprefix("builder"))} >= set(chain)
    disk = ran[named(ran, "snapshot")].inputs["creationData"]
    own = f"{GROUP}/providers/Microsoft.Compute/disks/trainyard-xeon-{chain[0]}-disk"
    assert disk == {"createOption": "Copy", "sourceResourceId": own}
    assert ran[chain[0]].inputs["storageProfile"]["osDisk"]["name"] == f"trainyard-xeon-{chain[0]}-disk"
    source = ran[named(ran, "image")].inputs["storageProfile"]["osDiskImage"]["source"]
    assert source["id"].endswith(named(ran, "snapshot"))


def test_another_builder_of_the_same_name_is_another_image(program: Program) -> None:
    """What was made of the one before must not be taken for its own."""
    ran = program()
    for part in ("gate", "seal", "stop"):
        assert ran[named(ran, part)].property_needs["incarnation"] == {named(ran, "builder")}
    assert ran[named(ran, "snapshot")].property_needs["snapshotName"] >= {named(ran, "builder")}
    assert ran[named(ran, "image")].replacement_trigger == vm_id(named(ran, "builder"))
    assert ran[named(ran, "image")].delete_before_replace and ran[named(ran, "builder")].delete_before_replace


def test_the_gate_and_the_seal_stop_the_builder_when_they_fail(program: Program) -> None:
    ran = program()
    gate, seal = ran[named(ran, "gate")].inputs, ran[named(ran, "seal")].inputs
    assert gate["builder"] is seal["builder"] is True
    assert gate["wanted"].startswith(named(ran, "gate").removeprefix("gate-")), "the record is of the image asked for"
    assert "trainyard/ready.json" in gate["script"].replace("$state", "trainyard")
    assert "waagent -deprovision" in seal["script"] and "bootstrap/seal.sh" in seal["script"]
    assert {ran[name].inputs.get("builder") for name in ran.declared if name.endswith("-key")} == {False}


def test_every_node_depends_on_the_image_and_on_no_other_node(program: Program) -> None:
    ran = program(nodes=3)
    for name in nodes(ran):
        assert named(ran, "image") in ran[name].needs
        assert not (set(nodes(ran)) - {name}) & ran.closure(name)
    assert {node["storageProfile"]["imageReference"]["id"] for node in nodes(ran).values()} == {
        f"{GROUP}/providers/GalleryImageVersion/{named(ran, 'image')}"
    }


def test_the_definition_is_of_a_trusted_launch_machine_with_nvme(program: Program) -> None:
    made = only(program(), "GalleryImage")
    assert (made["hyperVGeneration"], made["osState"], made["architecture"]) == ("V2", "Generalized", "x64")
    features = {feature["name"]: feature["value"] for feature in made["features"]}
    assert features["SecurityType"] == "TrustedLaunch" and "NVMe" in features["DiskControllerTypes"]


def test_an_image_by_its_id_declares_no_builder(program: Program) -> None:
    ran = program(image=BAKED)
    kinds = {found.type.rsplit(":", 1)[-1] for found in ran.declared.values()}
    assert not kinds & {"Stopped", "Snapshot", "Gallery", "GalleryImage", "GalleryImageVersion"}
    assert [name for name in ran.declared if name.startswith(("builder", "gate", "seal"))] == []
    assert {node["storageProfile"]["imageReference"]["id"] for node in nodes(ran).values()} == {BAKED}
    assert "TRAINYARD_IMAGE=0123456789abcdef\n" in unpacked(nodes(ran)["node1"]), "the node checks what it boots"


def test_a_changed_bootstrap_is_a_new_builder_and_image_beside_the_old(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(program().declared)
    monkeypatch.setattr(image, "script", lambda name: f"# changed\n{(image._SCRIPTS / name).read_text()}")
    after = set(program(idleMinutes=61).declared)
    new, old = ({re.sub("-[0-9a-f]{12}", "", name) for name in found} for found in (after - before, before - after))
    assert new == old
    assert {"builder", "gate", "seal", "stop", "snapshot", "definition", "image"} <= new


def test_limits_and_keys_bake_no_image_again(program: Program, settings: Callable[..., Settings]) -> None:
    """They are in the builder's user data, and are no part of the image."""
    assert image.key(settings()) == image.key(settings(maxHours=1, idleMinutes=5, nodes=9, owner="you"))
    assert image.key(settings()) != image.key(settings(instanceType="Standard_D32_v5"))
    assert {"osProfile", "storageProfile.imageReference"} <= set(program()[named(program(), "builder")].ignore_changes)


def test_the_builder_is_small_and_of_the_nodes_series(program: Program) -> None:
    for size, builder in (("Standard_D32s_v6", "Standard_D4s_v6"), ("Standard_D32_v5", "Standard_D4_v5")):
        ran = program(instanceType=size)
        made = ran[named(ran, "builder")].inputs
        assert made["hardwareProfile"]["vmSize"] == builder
        assert made["priority"] == "Regular" and "proximityPlacementGroup" not in made
        assert made["storageProfile"]["osDisk"]["diskSizeGB"] == 64
        assert re.fullmatch(r"24\.04\.\d+", made["storageProfile"]["imageReference"]["version"]), "never `latest`"


def test_what_takes_long_has_the_time_for_it(program: Program) -> None:
    ran = program()
    assert ran[named(ran, "gate")].timeouts["create"] == "2h"
    assert ran[named(ran, "image")].timeouts["create"] == "2h"
    assert ran[named(ran, "snapshot")].timeouts["create"] == "60m"
    assert all(ran[name].timeouts["create"] == "30m" for name in nodes(ran))


@pytest.mark.parametrize("count, replicas", [(1, 1), (20, 1), (21, 2), (64, 4)])
def test_an_image_for_many_nodes_has_more_than_one_replica(
    settings: Callable[..., Settings], count: int, replicas: int
) -> None:
    assert image.replicas(settings(nodes=count)) == replicas


# --- what a refresh brings ---


def replaced_after(declared: Declared, trigger: object = None, **seen: object) -> bool:
    """Whether the engine would replace what it declares again, when a refresh has put `seen` into the state.

    As in pulumi-azure-native's Read and the engine's step generator: the state's inputs take over what Azure has
    changed, ignored paths of the new inputs are the state's, and then a difference at or below a path that replaces, or
    another trigger, makes a replacement. Keys of `seen` are paths with `__` for a dot, values what is there now.
    """
    new, old = json.loads(json.dumps(declared.inputs)), json.loads(json.dumps(declared.inputs))
    for path, value in seen.items():
        *parents, last = path.split("__")
        place = old
        for part in parents:
            place = place[int(part)] if part.isdigit() else place.setdefault(part, {})
        place[last] = value
    changed = {path for path in {*leaves(old), *leaves(new)} if leaves(old).get(path) != leaves(new).get(path)}
    assert changed or trigger is not None, "the case changes something"
    changed = {path for path in changed if not below(path, declared.ignore_changes)}
    other = trigger is not None and trigger != declared.replacement_trigger
    return other or any(below(path, declared.replace_on_changes) for path in changed)


def leaves(value: object, path: str = "") -> dict[str, object]:
    """Every scalar and empty container by its path."""
    if isinstance(value, dict | list) and value:
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        found = [leaves(part, f"{path}.{key}".removeprefix(".")) for key, part in parts]
        return {key: leaf for each in found for key, leaf in each.items()}
    return {path: value}


def below(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(f"{root}.") for root in roots)


AZURES_OWN = {
    "another spelling of the snapshot": {
        "storageProfile__osDiskImage__source__id": f"{GROUP.upper()}/PROVIDERS/Microsoft.Compute/snapshots/SNAPSHOT"
    },
    "a default of the disk": {"storageProfile__osDiskImage__hostCaching": "None"},
    "disks that are not there": {"storageProfile__dataDiskImages": []},
    "an empty source": {"storageProfile__source": {}},
    "the region's other name": {"publishingProfile__targetRegions__0__name": "East US"},
    "how it is copied": {"publishingProfile__replicationMode": "Full"},
    "not left out of the latest": {"publishingProfile__excludeFromLatest": False},
    "a default kind of storage": {"publishingProfile__storageAccountType": "Standard_LRS"},
    "a safety that is off": {"safetyProfile__blockDeletionBeforeEndOfLife": False},
    "fewer replicas": {"publishingProfile__targetRegions__0__regionalReplicaCount": 2},
}


@pytest.mark.parametrize("seen", AZURES_OWN.values(), ids=AZURES_OWN.keys())
def test_a_refresh_does_not_make_the_image_again(program: Program, seen: dict[str, object]) -> None:
    ran = program()
    assert not replaced_after(ran[named(ran, "image")], **seen)


def test_another_builder_does_make_the_image_again(program: Program) -> None:
    ran = program()
    assert replaced_after(ran[named(ran, "image")], trigger=vm_id("another"))
    assert ran[named(ran, "image")].ignore_changes == (), "what was ignored would be made from the old snapshot"


@pytest.mark.parametrize(
    "seen",
    [
        {"storageProfile__imageReference__exactVersion": "1.0.0"},
        {"osProfile__requireGuestProvisionSignal": True},
        {"osProfile__linuxConfiguration__patchSettings": {"patchMode": "ImageDefault"}},
        {"osProfile__linuxConfiguration__enableVMAgentPlatformUpdates": False},
    ],
)
@pytest.mark.parametrize("asked", ["true", "false"])
def test_a_refresh_does_not_make_the_nodes_again(program: Program, asked: str, seen: dict[str, object]) -> None:
    assert not replaced_after(program(nodes=1, replaceNodes=asked)["node1"], **seen)


def test_nodes_are_made_again_for_another_image_only_when_that_is_asked_for(program: Program) -> None:
    other = {"storageProfile__imageReference__id": BAKED}
    assert replaced_after(program(nodes=1, replaceNodes="true")["node1"], **other)
    assert not replaced_after(program(nodes=1)["node1"], **other)


# --- the nodes ---


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


# --- network, storage, identity, budget ---


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


def test_the_storage_has_no_way_in_but_an_identity(program: Program) -> None:
    account = only(program(), "StorageAccount")
    assert account["allowBlobPublicAccess"] is account["allowSharedKeyAccess"] is False
    assert account["minimumTlsVersion"] == "TLS1_2" and account["enableHttpsTrafficOnly"] is True
    rules = account["networkRuleSet"]
    assert rules["defaultAction"] == "Deny" and [rule["iPAddressOrRange"] for rule in rules["ipRules"]] == [
        "203.0.113.7"
    ]
    assert only(program(), "BlobContainer")["publicAccess"] == "None"


@pytest.mark.parametrize(
    "admin, rules",
    [
        ("203.0.113.7/32", ["203.0.113.7"]),
        ("198.51.100.6/31", ["198.51.100.6", "198.51.100.7"]),
        ("8.8.8.0/24", ["8.8.8.0/24"]),
        ("10.9.0.0/16", []),
    ],
)
def test_the_admins_network_as_a_storage_account_takes_it(
    settings: Callable[..., Settings], admin: str, rules: list[str]
) -> None:
    assert data.ip_rules(settings(adminCidr=admin).cloud.admin_cidr) == rules


def test_the_identity_may_end_machines_and_keep_blobs_and_no_more(program: Program) -> None:
    ran = program()
    role = only(ran, "RoleDefinition")
    assert role["permissions"] == [
        {"actions": ["Microsoft.Compute/virtualMachines/read", "Microsoft.Compute/virtualMachines/deallocate/action"]}
    ]
    assert role["scope"] == GROUP and role["assignableScopes"] == [GROUP]
    scopes = {found.name: found.inputs["scope"] for found in ran.of(":RoleAssignment")}
    assert scopes["may-end"] == GROUP and scopes["may-store"].endswith("/container")
    assert {ran[name].inputs["principalId"] for name in ("may-end", "may-store")} == {principal("identity")}
    for machine in (*nodes(ran), named(ran, "builder")):
        assert ran[machine].inputs["identity"]["type"] == "UserAssigned"


@pytest.mark.parametrize("client, kind", [("", "User"), ("11111111-aaaa-bbbb-cccc-222222222222", "ServicePrincipal")])
def test_whoever_runs_it_may_list_what_the_container_holds(
    raw: dict[str, str], client: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An Owner may not, and keys are off: the audit could not tell an empty container from a full one."""
    answer = Azure.invoked
    signed_in = {"clientId": client} if client else {}
    monkeypatch.setattr(Azure, "invoked", lambda self, args: {**answer(self, args), **signed_in})
    made = run(raw, Azure(), stack="xeon")["may-read"].inputs
    assert (made["principalId"], made["principalType"]) == (principal("operator"), kind)
    assert made["scope"].endswith("/StorageAccount/data"), "the flow logs' container as well"
    assert made["roleDefinitionId"].endswith("/2a2b9908-6ea1-4ae2-8e65-a410df84e7d1")  # Storage Blob Data Reader


def test_the_budget_is_of_the_group_and_its_month_is_not_the_programs_clock(program: Program) -> None:
    ran = program(budgetUsd=250)
    made = only(ran, "Budget")
    assert (made["scope"], made["amount"], made["timeGrain"]) == (GROUP, 250, "Monthly")
    assert ran["budget"].property_needs["timePeriod"] >= {"month"}
    assert {tuple(alarm["contactEmails"]) for alarm in made["notifications"].values()} == {("me@example.org",)}
    for path in (ROOT / "infra/clouds/azure").glob("*.py"):
        clock = [line for line in path.read_text().splitlines() if re.search(r"\b(now|today|utcnow)\(", line)]
        assert len(clock) == (path.name == "budget.py"), "only the provider of the month looks at the calendar"


DATA = {"group", "data", "container", "blobs", "tidy", "may-read"}


@pytest.mark.parametrize("keep, kept", [("true", DATA), ("false", set())])
def test_data_outlives_the_cluster_only_when_asked(program: Program, keep: str, kept: set[str]) -> None:
    ran = program(keepData=keep)
    assert {name for name, found in ran.declared.items() if found.retain_on_delete} == kept


def test_data_that_is_kept_keeps_no_network(program: Program) -> None:
    """`--exclude` keeps what the account depends on, and a NAT gateway costs; the subnet comes first nevertheless."""
    ran = program()
    for kept in DATA:
        assert ran.closure(kept) <= {"group", "azure", "data", "blobs"}, ran.closure(kept)
    (rule,) = only(ran, "StorageAccount")["networkRuleSet"]["virtualNetworkRules"]
    assert rule["virtualNetworkResourceId"] == f"{GROUP}/providers/Subnet/subnet", "waited for"


def test_a_preview_knows_the_subnet_that_is_not_there_yet(raw: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Azure.outputs
    unmade = {"id": ""}
    monkeypatch.setattr(
        Azure, "outputs", lambda self, args: {**answer(self, args), **(unmade if args.name == "subnet" else {})}
    )
    ran = run(raw, Azure(), stack="xeon", preview=True)
    (rule,) = only(ran, "StorageAccount")["networkRuleSet"]["virtualNetworkRules"]
    own = "Microsoft.Network/virtualNetworks/trainyard-xeon-network/subnets/trainyard-xeon-subnet"
    assert rule["virtualNetworkResourceId"] == f"{GROUP}/providers/{own}"


def test_flow_logs_by_config(program: Program) -> None:
    assert program().of(":FlowLog") == []
    made = only(program(flowLogs="true"), "FlowLog")
    assert made["targetResourceId"].endswith("/network") and made["networkWatcherName"] == "NetworkWatcher_eastus"


def test_flow_logs_come_with_an_identity_that_may_do_nothing_else(program: Program) -> None:
    """The account takes no keys, so logs without an identity would never be written."""
    ran = program(flowLogs="true")
    assert only(ran, "StorageAccount")["allowSharedKeyAccess"] is False
    log = ran["flow-logs"]
    assert log.inputs["identity"] == {
        "type": "UserAssigned",
        "userAssignedIdentities": [f"{GROUP}/providers/UserAssignedIdentity/flow-logs-identity"],
    }
    assert "may-log" in log.needs, "the right is there before the first log"
    right = ran["may-log"].inputs
    assert right["principalId"] == principal("flow-logs-identity") and right["scope"].endswith("/StorageAccount/data")
    assert right["roleDefinitionId"].endswith(f"/{access.BLOB_CONTRIBUTOR}")
    others = [found.inputs for found in ran.of(":RoleAssignment") if found.name != "may-log"]
    assert all(other["principalId"] != principal("flow-logs-identity") for other in others)
    machines = [found.inputs["identity"]["userAssignedIdentities"] for found in ran.of(":VirtualMachine")]
    assert machines and all("flow-logs" not in str(identities) for identities in machines)


def test_one_lifecycle_policy_removes_old_flow_logs(program: Program) -> None:
    """A retention in the flow log would make Network Watcher write a policy over the account's."""
    ran = program(flowLogs="true")
    assert only(ran, "FlowLog")["retentionPolicy"] == {"days": 0, "enabled": False}
    rules = {rule["name"]: rule["definition"] for rule in only(ran, "ManagementPolicy")["policy"]["rules"]}
    assert set(rules) == {"old-versions", "old-flow-logs"}
    assert rules["old-flow-logs"]["filters"]["prefixMatch"] == ["insights-logs-flowlogflowevent/"]
    assert rules["old-flow-logs"]["actions"] == {"baseBlob": {"delete": {"daysAfterModificationGreaterThan": 30}}}
    (own,) = only(program(), "ManagementPolicy")["policy"]["rules"]
    assert own["name"] == "old-versions"


def test_what_a_node_deletes_can_be_had_back_for_a_week_and_not_for_ever(program: Program) -> None:
    ran = program()
    service = only(ran, "BlobServiceProperties")
    week = {"days": 7, "enabled": True}
    assert service["isVersioningEnabled"] is True
    assert service["deleteRetentionPolicy"] == service["containerDeleteRetentionPolicy"] == week
    (rule,) = only(ran, "ManagementPolicy")["policy"]["rules"]
    assert rule["enabled"] is True
    assert rule["definition"] == {
        "actions": {"version": {"delete": {"daysAfterCreationGreaterThan": 1}}},
        "filters": {"blobTypes": ["blockBlob"]},
    }


def test_a_machine_is_made_after_its_right_to_end_itself(program: Program) -> None:
    """One that is there before, and whose `up` dies, could ask nobody to deallocate it, and would be billed on."""
    ran = program()
    for machine in (*nodes(ran), named(ran, "builder")):
        assert "may-end" in ran[machine].needs, machine


# --- all of it ---


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


def test_the_longest_names_are_names_that_azure_takes(program: Program) -> None:
    stack = "s-" + "0123456789" * 3
    ran = program(stack=stack, nodes=2, flowLogs="true")
    for found in ran.declared.values():
        kind = found.type.rsplit(":", 1)[-1]
        if found.type.startswith("azure-native:"):
            name = found.inputs[OWN_NAMES[kind]].replace("node2", "node64")
            assert re.fullmatch(LIMITS[kind], name), f"{kind} {name}"
    disks = [found.inputs["storageProfile"]["osDisk"]["name"] for found in ran.of(":VirtualMachine")]
    assert all(re.fullmatch(r"[A-Za-z0-9][\w.-]{0,77}\w", name) for name in disks)


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

    whole = bill()
    assert whole["nodes"] == whole["their disks"] == 3 and whole["NAT gateway, without its traffic"] == 1
    assert {"disk of the builder, which is off", "snapshot, at most", "golden image, at most"} < set(whole)
    assert set(whole) - set(bill(image=BAKED)) == {
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
