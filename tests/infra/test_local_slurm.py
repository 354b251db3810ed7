"""Slurm on the local stack without root or machines: what is declared, configured, kept and refused."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from baked_image import IMAGE, bake
from local_mocks import Machines
from program_recorder import Ran, run

from infra.clouds.local import base_image, host, image, image_cache, paths
from infra.clouds.local.layer import Recipe
from infra.clouds.local.nodes import NodeProvider
from infra.clouds.local.nspawn import NspawnMachine
from infra.clouds.local.slurm import configuration, folder, layer
from infra.clusters import local
from infra.config import stack_file
from infra.config.settings import load
from infra.config.values import SettingsError
from infra.errors import UsageError


@pytest.fixture
def declared(good: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Ran:
    """The program of two nodes with Slurm."""
    monkeypatch.setattr(host, "check_machine", lambda: None)
    monkeypatch.setattr(host, "check", lambda settings, image: None)
    monkeypatch.setattr(Recipe, "check", lambda recipe, parent: None)
    return run({**good, "nodes": "2", "scheduler": "slurm", "memoryMb": "1024"}, Machines(), stack="local")


# --- what is declared ---


def test_nodes_with_slurm_need_its_image_and_its_folder(declared: Ran) -> None:
    assert set(declared.declared) == {"stack-id", "network", "image", "slurm-image", "slurm", "node1", "node2"}
    for name in ("node1", "node2"):
        assert declared[name].needs == {"network", "slurm-image", "slurm"}
    assert declared["slurm-image"].needs == {"stack-id", "image"}


def test_the_image_of_the_profile_stays_as_it_is(declared: Ran, good: dict[str, str]) -> None:
    """Only a layer is baked: the nodes ask for the profile's image in their user data, as nodes without Slurm do."""
    parent = local.image_id(load("local", good))
    assert declared["image"].inputs["image"] == parent
    assert declared["slurm-image"].inputs == {
        **declared["slurm-image"].inputs,
        "image": layer.RECIPE.key(parent),
        "parent": parent,
    }
    assert declared["node1"].inputs["image"] == layer.RECIPE.key(parent) != parent
    assert f"TRAINYARD_IMAGE={parent}\n" in declared["node1"].inputs["user_data"]


def test_the_inventory_says_that_slurm_runs_the_jobs(declared: Ran) -> None:
    assert (declared.cluster.launcher, declared.cluster.shared_dir) == ("slurm", "/fsx")


def test_every_node_has_the_same_configuration_with_all_of_them(declared: Ran) -> None:
    text = declared["slurm"].inputs["slurm.conf"]
    assert text == configuration.slurm_conf(
        "local", {"node1": "10.77.0.10", "node2": "10.77.0.11"}, cpus=1, memory_mb=1024
    )
    assert re.findall(r"^NodeName=.*", text, re.M) == [
        f"NodeName=node{n} NodeAddr=10.77.0.{9 + n} CPUs=1 RealMemory={1024 - configuration.OWN_MEMORY_MB}"
        for n in (1, 2)
    ]
    assert "SlurmctldHost=node1(10.77.0.10)\n" in text
    assert not re.search(r"^TaskPlugin", text, re.M), "task/affinity pins all nodes' ranks to one CPU"


def test_another_number_of_nodes_changes_the_configuration_and_no_other_node(good: dict[str, str]) -> None:
    few, many = (
        {key: str(value) for key, value in {**good, "scheduler": "slurm", "nodes": count}.items()} for count in (2, 3)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "check", lambda settings: None)
        two, three = (run(keys, Machines(), stack="local") for keys in (few, many))
    assert two["node2"] == three["node2"] and two["slurm"] != three["slurm"]


@pytest.mark.parametrize("cluster", ["aws-xeon", "azure-xeon"])
def test_a_cloud_s_stack_is_refused_it(cluster: str, good: dict[str, str]) -> None:
    raw = {**good, **stack_file.read(cluster), "scheduler": "slurm", "publicKey": good["publicKey"]}
    with pytest.raises(SettingsError, match=f"scheduler = 'slurm': must be none on {cluster}"):
        load(cluster, raw)


# --- what a change means ---

NODE = {"stack": "local", "name": "node1", "address": "10.77.0.10/24", "bridge": "b", "image": IMAGE, "user_data": ""}
NODE |= {"cpus": "1", "memory_mb": "2048"}


def test_a_node_of_before_there_was_slurm_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NspawnMachine, "is_alive", lambda self: True)
    assert not NodeProvider().diff("local-node1", {**NODE, "alive": True}, NODE).changes
    found = NodeProvider().diff("local-node1", {**NODE, "alive": True}, {**NODE, "scheduler": "slurm"})
    assert found.replaces == ["scheduler"]


def props(stack: str = "lab", text: str = "NodeName=node1\n") -> dict[str, str]:
    return {"stack": stack, folder.CONFIGURATION: text, **folder.SCRIPTS}


def test_only_another_stack_is_another_folder() -> None:
    provider = folder.SlurmProvider()
    assert not provider.diff("lab-slurm", props(), props()).changes
    more = provider.diff("lab-slurm", props(), props(text="NodeName=node[1-2]\n"))
    assert (more.changes, more.replaces) == (True, []), "the jobs' files stay"
    older = provider.diff("lab-slurm", {**props(), "step.sh": "older"}, props())
    assert (older.changes, older.replaces) == (True, [])
    assert provider.diff("lab-slurm", props(), props("other")).replaces == ["stack"]


# --- its image ---


def over(home: Path, name: str, parent: str) -> None:
    """A layer in the cache, as its bake leaves it."""
    bake(home, name)
    record = home / "images" / name / "image.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "parent": parent}))


def test_a_layer_is_over_the_profile_s_and_no_image_without_it(home: Path) -> None:
    bake(home, IMAGE)
    over(home, "b" * 16, IMAGE)
    assert image.layers("b" * 16) == [home / "images" / ("b" * 16) / "layer", *image.layers(IMAGE)]
    image.remove(IMAGE)
    assert image.record("b" * 16) is None and image.baked() == []


def test_its_name_is_over_the_image_under_it_and_all_that_goes_into_it() -> None:
    keys = {layer.RECIPE.key(IMAGE), layer.RECIPE.key("f" * 16)}
    changes: list[dict[str, Any]] = [{"packages": ("munge",)}, {"install": "true"}, {"files": {}}, {"secrets": ()}]
    for change in changes:
        keys.add(replace(layer.RECIPE, **change).key(IMAGE))
    assert len(keys) == 6 and all(re.fullmatch("[0-9a-f]{16}", key) for key in keys)


def test_prune_keeps_what_is_under_a_layer_in_use(home: Path) -> None:
    bake(home, IMAGE)
    over(home, "b" * 16, IMAGE)
    over(home, "c" * 16, IMAGE)
    spec = paths.node("lab", "node1") / "spec.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"image": "b" * 16}))
    assert {row["id"]: (row["over"], row["used_by"]) for row in image_cache.listing()} == {
        IMAGE: ("", ["lab"]),
        "b" * 16: (IMAGE, ["lab"]),
        "c" * 16: (IMAGE, []),
    }
    assert [line.split(" (")[0] for line in image_cache.prune()] == [f"image {'c' * 16}"]
    spec.unlink()
    assert len(image_cache.prune()) == 3, "both images and the base"


def test_a_layer_cannot_be_asked_for_as_an_image(home: Path, good: dict[str, str]) -> None:
    bake(home, IMAGE)
    over(home, "b" * 16, IMAGE)
    with pytest.raises(
        SettingsError, match=f"image = '{'b' * 16}': must be an image without a scheduler, such as {IMAGE}"
    ):
        host.check(load("local", {**good, "image": "b" * 16}), "b" * 16)


def test_a_machine_without_an_archive_can_use_a_layer_and_make_none(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_image, "sources", lambda: [])
    with pytest.raises(UsageError, match="scheduler = 'slurm': /etc/apt names no archive"):
        layer.RECIPE.check(IMAGE)
    bake(home, IMAGE)
    over(home, layer.RECIPE.key(IMAGE), IMAGE)
    layer.RECIPE.check(IMAGE)


# --- the scripts ---


def test_shellcheck_finds_nothing_in_the_scripts() -> None:
    scripts = sorted(Path(folder.__file__).parent.glob("*.sh"))
    assert [path.name for path in scripts] == ["epilog.sh", "install.sh", "step.sh"]
    subprocess.run(["shellcheck", *map(str, scripts)], check=True)
