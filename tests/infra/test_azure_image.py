"""The golden image on Azure: its stages, what makes another one, and what a refresh does not."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable

import pytest
from azure_mocks import BAKED, GROUP, Program, named, nodes, only, unpacked, vm_id
from program_recorder import Declared

from infra.clouds.azure import image
from infra.config.settings import Settings

pytest_plugins = ["azure_program"]


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
    after = set(program(shared=False).declared)
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
