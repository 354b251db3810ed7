"""The contract between provisioning and running: what is written is read back, what is wrong is one line."""

from __future__ import annotations

import ipaddress
import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.inventory import SCHEMA, Cluster, InventoryError, KubeCluster, Node, SshCluster, from_json, to_json

TEXT = st.text(max_size=20)
NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
HOST_KEYS = st.one_of(
    st.just(""), st.text(string.ascii_letters + string.digits, min_size=1).map("ssh-ed25519 {}".format)
)
FEW = st.integers(1, 1024)


@st.composite
def ssh_clusters(draw: st.DrawFn) -> SshCluster:
    names = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    addresses = draw(st.lists(st.ip_addresses().map(str), min_size=len(names), max_size=len(names), unique=True))
    nodes = tuple(
        Node(
            name=name,
            private_ip=address,
            role="head" if index == 0 else "worker",
            ssh_host=draw(TEXT),
            ssh_port=draw(st.integers(1, 65535)),
            slots=draw(FEW),
            cores_per_slot=draw(FEW),
            gpus=draw(st.integers(0, 64)),
            memory_gb=draw(st.floats(0, 1e5)),
            host_key=draw(HOST_KEYS),
            console=draw(TEXT),
        )
        for index, (name, address) in enumerate(zip(names, addresses, strict=True))
    )
    return SshCluster(
        name=draw(TEXT),
        nodes=nodes,
        launcher=draw(st.sampled_from(["mpirun", "slurm"])),
        jump_host=draw(TEXT),
        shared_dir=draw(TEXT),
        hourly_usd=draw(st.floats(0, 1e5)),
    )


KUBE_CLUSTERS = st.builds(
    KubeCluster, name=TEXT, region=TEXT, namespace=TEXT, image=TEXT, workers=FEW, gpus_per_worker=FEW
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
GOOD: dict[str, Any] = json.loads(
    to_json(
        SshCluster(
            name="yard",
            nodes=(
                Node(name="node1", private_ip="10.0.0.1", role="head"),
                Node(name="node2", private_ip="10.0.0.2"),
            ),
        )
    )
)


@given(ssh_clusters() | KUBE_CLUSTERS)
def test_what_is_written_is_read_back(cluster: Cluster) -> None:
    assert from_json(to_json(cluster)) == cluster
    assert to_json(from_json(to_json(cluster))) == to_json(cluster)


@given(ssh_clusters())
def test_the_head_is_first(cluster: SshCluster) -> None:
    assert cluster.head.role == "head"
    assert [node.role for node in cluster.nodes[1:]] == ["worker"] * (len(cluster.nodes) - 1)


def test_a_hand_written_file_needs_little() -> None:
    nodes = [
        {"name": "a", "private_ip": "10.0.0.1"},
        {"name": "b", "private_ip": "10.0.0.2", "ssh_host": "b.example.org"},
    ]
    cluster = from_json(json.dumps({"schema": 1, "kind": "ssh", "nodes": nodes}))
    assert isinstance(cluster, SshCluster)
    assert [(node.name, node.role, node.address) for node in cluster.nodes] == [
        ("a", "head", "10.0.0.1"),
        ("b", "worker", "b.example.org"),
    ]
    assert cluster.node("b") is cluster.nodes[1]
    with pytest.raises(InventoryError, match="no node 'c' in machines; there are: a, b"):
        cluster.node("c")


def complaint(text: str) -> str:
    with pytest.raises(InventoryError) as caught:
        from_json(text, source="my.json")
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith("my.json: ")
    return said


@given(st.text() | JSON.map(json.dumps))
def test_any_other_text_is_one_line(text: str) -> None:
    complaint(text)


CLUSTER_KEYS = [key for key in GOOD if key not in ("schema", "kind", "nodes")]


@given(key=st.sampled_from(CLUSTER_KEYS), value=JSON)
def test_a_wrong_value_of_a_cluster_is_named(key: str, value: object) -> None:
    good = GOOD[key]
    fits = isinstance(value, (int, float) if isinstance(good, float) else type(good)) and not isinstance(value, bool)
    if fits and key != "launcher":
        return
    if key == "launcher" and value in ("mpirun", "slurm"):
        return
    assert key in complaint(json.dumps({**GOOD, key: value}))


@given(key=st.sampled_from(list(GOOD["nodes"][0])), value=JSON, index=st.integers(0, 1))
def test_a_wrong_value_of_a_node_is_named(key: str, value: object, index: int) -> None:
    good = GOOD["nodes"][index][key]
    if isinstance(value, (int, float) if isinstance(good, float) else type(good)) and not isinstance(value, bool):
        return  # of the right type: ranges are below
    nodes = [dict(node) for node in GOOD["nodes"]]
    nodes[index][key] = value
    said = complaint(json.dumps({**GOOD, "nodes": nodes}))
    assert f"nodes[{index}]" in said
    assert key in said


@given(key=st.text(string.ascii_lowercase + "_", min_size=1), on_node=st.booleans())
def test_an_unknown_key_is_named_with_the_known_ones(key: str, on_node: bool) -> None:
    where = GOOD["nodes"][0] if on_node else GOOD
    if key in where:
        return
    raw = json.loads(json.dumps(GOOD))
    (raw["nodes"][0] if on_node else raw)[key] = 1
    said = complaint(json.dumps(raw))
    assert repr(key) in said
    assert ("ssh_port" if on_node else "jump_host") in said


@pytest.mark.parametrize("schema", [None, "1", 0, -1, 1.5, True, [], SCHEMA + 1, 99])
def test_the_schema_comes_first(schema: object) -> None:
    said = complaint(json.dumps({**GOOD, "schema": schema, "something": "new"}))
    assert "schema" in said
    if schema in (SCHEMA + 1, 99):
        assert f"schema {schema} is newer than schema {SCHEMA}" in said
        assert "update trainyard" in said


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"name": "Node_1"}, "nodes[1]: name"),
        ({"name": ""}, "nodes[1]: name"),
        ({"name": "a" * 64}, "nodes[1]: name"),
        ({"name": "node1"}, "name 'node1' stands twice"),
        ({"private_ip": "10.0.0.1"}, "private_ip '10.0.0.1' stands twice"),
        ({"private_ip": "10.0.0"}, "nodes[1]: private_ip"),
        ({"private_ip": "node2"}, "nodes[1]: private_ip"),
        ({"role": "head"}, "nodes[1]: role"),
        ({"role": "boss"}, "nodes[1]: role"),
        ({"ssh_port": 0}, "ssh_port = 0: must be from 1 to 65535"),
        ({"ssh_port": 65536}, "ssh_port = 65536"),
        ({"ssh_port": True}, "ssh_port = True"),
        ({"slots": 0}, "slots = 0"),
        ({"cores_per_slot": 0}, "cores_per_slot = 0"),
        ({"gpus": -1}, "gpus = -1"),
        ({"host_key": "ssh-ed25519"}, "host_key"),
        ({"host_key": "ssh-ed25519 AAAA\nevil ssh-rsa AAAA"}, "host_key"),
        ({"host_key": "ssh-ed25519 AAAA comment"}, "host_key"),
    ],
)
def test_a_value_out_of_range_is_named(change: dict[str, object], expected: str) -> None:
    nodes = [GOOD["nodes"][0], {**GOOD["nodes"][1], **change}]
    assert expected in complaint(json.dumps({**GOOD, "nodes": nodes}))


@pytest.mark.parametrize("nodes", [None, [], {}, "node1", [None], ["node1"], [{}], [{"name": "a"}]])
def test_nodes_are_a_list_of_objects(nodes: object) -> None:
    assert "nodes" in complaint(json.dumps({**GOOD, "nodes": nodes}))


def test_an_address_is_kept_as_it_was_written() -> None:
    nodes = [{"name": "a", "private_ip": "FD00::0001"}]
    cluster = from_json(json.dumps({"schema": 1, "kind": "ssh", "nodes": nodes}))
    assert isinstance(cluster, SshCluster)
    assert ipaddress.ip_address(cluster.head.address) == ipaddress.ip_address("fd00::1")
