"""The Pulumi program under mocks: what it declares, from which settings, and the inventory that comes out."""

from __future__ import annotations

import asyncio
import runpy
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from bad_settings import as_text
from google.protobuf import empty_pb2
from pulumi.runtime import rpc
from pulumi.runtime.config import set_all_config
from pulumi.runtime.mocks import MockCallArgs, MockEngine, MockMonitor, MockResourceArgs, Mocks, MockSettings
from pulumi.runtime.settings import configure
from pulumi.runtime.stack import run_in_stack

from infra import inventory, stack_file, user_data
from infra.clusters.local import image_id
from infra.local import host
from infra.settings import KEYS, ROOT, load

OWN = {"adminCidr": "203.0.113.7/32", "owner": "me", "alertEmail": "me@example.org"}
"""What a cloud's stack file leaves to its user."""
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"


class Machines(Mocks):
    """Answers as the providers do."""

    def new_resource(self, args: MockResourceArgs) -> tuple[str, dict[str, Any]]:
        made: dict[str, dict[str, Any]] = {
            "Network": {"bridge": "ty0123456789"},
            "Image": {"software": "{}"},
            "Node": {"host_key": HOST_KEY, "console": f"/var/log/{args.name}", "alive": True},
        }
        return f"{args.name}-id", {**args.inputs, **made[args.typ.rsplit(":", 1)[-1]]}

    def call(self, args: MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]] | None]:
        raise AssertionError(f"the program calls {args.token}")


class Monitor(MockMonitor):
    """Records what each resource was declared with, and what it depends on."""

    def __init__(self) -> None:
        super().__init__(Machines())
        self.inputs: dict[str, dict[str, Any]] = {}
        self.types: dict[str, str] = {}
        self.needs: dict[str, set[str]] = {}
        self.outputs: dict[str, Any] = {}

    def RegisterResource(self, request: Any) -> Any:
        if request.type != "pulumi:pulumi:Stack":
            self.inputs[request.name] = rpc.deserialize_properties(request.object)
            self.types[request.name] = request.type
            self.needs[request.name] = {urn.rsplit("::", 1)[-1] for urn in request.dependencies}
        return super().RegisterResource(request)

    def RegisterResourceOutputs(self, request: Any) -> Any:
        if "pulumi:pulumi:Stack" in request.urn:
            self.outputs = rpc.deserialize_properties(request.outputs)
        return super().RegisterResourceOutputs(request)


@dataclass
class Ran:
    """One run of the program."""

    monitor: Monitor
    raw: dict[str, str] = field(repr=False)

    @property
    def nodes(self) -> dict[str, dict[str, Any]]:
        return {
            name: inputs for name, inputs in self.monitor.inputs.items() if self.monitor.types[name].endswith("Node")
        }

    @property
    def cluster(self) -> inventory.SshCluster:
        found = inventory.from_json(self.monitor.outputs["inventory"])
        assert isinstance(found, inventory.SshCluster)
        return found


Program = Callable[..., Ran]


def main() -> None:
    runpy.run_module("infra", run_name="__main__")


@pytest.fixture
def program(good: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """Run infra/__main__.py with these keys, on a machine that has what it takes."""
    monkeypatch.setattr(host, "check_machine", lambda: None)
    monkeypatch.setattr(host, "check", lambda settings, image: None)

    def run(*, stack: str = "local", preview: bool = False, **keys: object) -> Ran:
        raw = {**good, **{key: str(value) for key, value in keys.items()}}
        monitor = Monitor()
        set_all_config({f"{stack_file.PROJECT}:{key}": value for key, value in raw.items()})
        # Not set_mocks: it makes a root resource once per process, and the exports of a second run would be lost.
        configure(
            MockSettings(
                monitor=monitor,
                monitor_features=set(monitor.GetDeploymentInfo(empty_pb2.Empty()).supportedFeatures),
                engine=MockEngine(None),
                project=stack_file.PROJECT,
                stack=stack,
                dry_run=preview,
                organization=None,
                callbacks=None,
            )
        )
        asyncio.run(run_in_stack(main))
        return Ran(monitor, raw)

    # The program wants Ctrl-C to end its process at once; this process is pytest's.
    handler = signal.getsignal(signal.SIGINT)
    yield run
    signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize("count", [1, 3, 64])
def test_as_many_nodes_as_asked_for(program: Program, count: int) -> None:
    ran = program(nodes=count)
    assert list(ran.nodes) == [f"node{number}" for number in range(1, count + 1)]
    assert set(ran.monitor.inputs) == {"network", "image", *ran.nodes}
    assert [node.name for node in ran.cluster.nodes] == list(ran.nodes)
    assert ran.monitor.outputs["hourlyUsd"] == 0, "the machine is the user's own"


def test_addresses_are_fixed_and_those_of_the_settings(program: Program) -> None:
    ran = program(nodes=3, cidr="172.20.4.0/23")
    assert [inputs["address"] for inputs in ran.nodes.values()] == [f"172.20.4.{n}/23" for n in (10, 11, 12)]
    assert [node.private_ip for node in ran.cluster.nodes] == [f"172.20.4.{n}" for n in (10, 11, 12)]
    assert ran.monitor.inputs["network"]["cidr"] == "172.20.4.0/23"


def test_another_number_of_nodes_changes_no_other_node(program: Program) -> None:
    few, many = program(nodes=2), program(nodes=5)
    for name in few.nodes:
        assert few.nodes[name] == many.nodes[name]
    assert few.monitor.inputs["image"] == many.monitor.inputs["image"]


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


def test_a_node_needs_the_network_and_the_image_and_no_other_node(program: Program) -> None:
    needs = program(nodes=3).monitor.needs
    assert needs == {"network": set(), "image": set(), **{f"node{n}": {"network", "image"} for n in (1, 2, 3)}}


def test_a_node_is_told_its_own_name_and_role(program: Program) -> None:
    ran = program(nodes=2)
    settings = load("local", ran.raw)
    image = image_id(settings)
    assert ran.monitor.inputs["image"]["image"] == image
    for index, (name, role) in enumerate((("node1", "head"), ("node2", "worker"))):
        wanted = user_data.for_node(settings, image, name, role, baked=True)
        assert list(ran.nodes.values())[index]["user_data"] == wanted


def test_an_image_that_was_asked_for_is_not_baked(program: Program) -> None:
    ran = program(nodes=1, image="0123456789abcdef")
    assert (ran.monitor.inputs["image"]["image"], ran.monitor.inputs["image"]["user_data"]) == ("0123456789abcdef", "")
    assert ran.nodes["node1"]["image"] == "0123456789abcdef"


def test_nothing_secret_goes_into_any_resource(program: Program) -> None:
    ran = program(nodes=1)
    assert "PRIVATE KEY" not in repr(ran.monitor.inputs) + repr(ran.monitor.outputs)


def test_a_preview_declares_the_same(program: Program) -> None:
    assert list(program(nodes=2, preview=True).nodes) == ["node1", "node2"]


@pytest.mark.parametrize("keys", [{"nodes": 0}, {"cidr": "8.8.8.0/24"}, {"profile": "x"}, {"nodse": 3}], ids=str)
def test_bad_settings_are_one_line_and_declare_nothing(program: Program, keys: dict[str, object]) -> None:
    with pytest.raises(pulumi.RunError) as caught:
        program(**keys)
    assert str(caught.value).startswith(f"{next(iter(keys))} = ") and len(str(caught.value).splitlines()) == 1


# --- Pulumi.yaml and the settings say the same ---


def declared() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]
    return loaded


def test_pulumi_declares_the_keys_of_the_settings_in_their_order() -> None:
    assert tuple(declared()) == KEYS
    assert all(spec["description"] for spec in declared().values())


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
