"""The contract between provisioning and running: what is written is read back, what is wrong is one line."""

from __future__ import annotations

import ipaddress
import json
import string
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inventory_values import KUBE_CLUSTERS, ssh_clusters

from infra.inventory import (
    SCHEMA,
    Cluster,
    InventoryError,
    KubeCluster,
    Node,
    Queue,
    SshCluster,
    from_json,
    to_json,
)
from infra.inventory_types import Span, TextForm

TEXT = st.text(max_size=20)
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


@settings(max_examples=40)  # each draws some hundred values
@given(ssh_clusters() | KUBE_CLUSTERS)
def test_what_is_written_is_read_back(cluster: Cluster) -> None:
    assert from_json(to_json(cluster)) == cluster
    assert to_json(from_json(to_json(cluster))) == to_json(cluster)


def test_an_inventory_that_an_older_version_wrote_is_read_and_written_the_same() -> None:
    """The file is as trainyard wrote it before infra/ was sorted by subject; it is never to be changed."""
    frozen = Path(__file__).with_name("inventory_of_before.json").read_text()
    assert to_json(from_json(frozen)) == frozen.rstrip("\n")


def test_software_of_the_machines_is_written_only_where_there_is_some() -> None:
    kube = KubeCluster(name="k", namespace="n", image="i:1", workers=1, gpus_per_worker=0, software="/usr,/opt/x")
    assert from_json(to_json(kube)) == kube
    without = replace(kube, software="")
    assert "software" not in json.loads(to_json(without))
    for bad in ("usr", "/usr,", "/usr,../etc", "/a b"):
        with pytest.raises(InventoryError, match=r"software = .*: must be absolute paths"):
            from_json(json.dumps({**json.loads(to_json(kube)), "software": bad}))


def test_a_queue_is_written_only_where_there_is_one() -> None:
    assert "queue" not in GOOD
    queue = {"name": "queue1", "nodes": 2, "node_prefix": "queue1-dy-node", "slots": 8, "gpus": 8}
    cluster = from_json(json.dumps({**GOOD, "launcher": "slurm", "queue": queue}))
    assert isinstance(cluster, SshCluster) and cluster.queue is not None
    assert cluster.queue.node_names == ("queue1-dy-node-1", "queue1-dy-node-2")
    written = json.loads(to_json(cluster))["queue"]
    assert written == {**written, **queue, "cores_per_slot": 1, "memory_gb": 0.0, "hourly_usd": 0.0}


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        (["queue1"], "queue: must be an object with name, nodes and node_prefix"),
        ({"name": "queue1", "nodes": 2}, "queue: node_prefix is missing"),
        ({"name": "queue1", "nodes": 0, "node_prefix": "n"}, "queue: nodes = 0: must be from 1 to 1024"),
        ({"name": "q\n", "nodes": 1, "node_prefix": "n"}, "queue: name = 'q\\\\n': must be a host name"),
        ({"name": "q", "nodes": 1, "node_prefix": "n", "cards": 1}, "queue: unknown key 'cards'"),
    ],
)
def test_a_queue_that_cannot_be_used_is_one_line(queue: object, why: str) -> None:
    with pytest.raises(InventoryError, match=f"^inventory: {why}"):
        from_json(json.dumps({**GOOD, "queue": queue}))


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
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("my.json: ")
    return message


@given(st.text() | JSON.map(json.dumps))
def test_any_other_text_is_one_line(text: str) -> None:
    complaint(text)


CLUSTER_KEYS = [key for key in GOOD if key not in ("schema", "kind", "nodes")]


@given(key=st.sampled_from(CLUSTER_KEYS), value=JSON)
def test_a_wrong_value_of_a_cluster_is_named(key: str, value: object) -> None:
    good = GOOD[key]
    fits = isinstance(value, (int, float) if isinstance(good, float) else type(good)) and not isinstance(value, bool)
    if fits and key != "launcher":  # of the right type: forms and spans are below
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
    message = complaint(json.dumps({**GOOD, "nodes": nodes}))
    assert f"nodes[{index}]" in message
    assert key in message


@given(key=st.text(string.ascii_lowercase + "_", min_size=1), on_node=st.booleans())
def test_an_unknown_key_is_named_with_the_known_ones(key: str, on_node: bool) -> None:
    where = GOOD["nodes"][0] if on_node else GOOD
    if key in where:
        return
    raw = json.loads(json.dumps(GOOD))
    (raw["nodes"][0] if on_node else raw)[key] = 1
    message = complaint(json.dumps(raw))
    assert repr(key) in message
    assert ("ssh_port" if on_node else "jump_host") in message


@pytest.mark.parametrize("schema", [None, "1", 0, -1, 1.5, True, [], SCHEMA + 1, 99])
def test_the_schema_comes_first(schema: object) -> None:
    message = complaint(json.dumps({**GOOD, "schema": schema, "something": "new"}))
    assert "schema" in message
    if schema in (SCHEMA + 1, 99):
        assert f"schema {schema} is newer than schema {SCHEMA}" in message
        assert "update trainyard" in message


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


@pytest.mark.parametrize("cls", [Node, Queue, SshCluster, KubeCluster])
def test_every_field_says_what_it_may_be(cls: type) -> None:
    """A new text field without a form would be open to anything: a line end in one ran a command on a laptop."""
    for name, hint in get_type_hints(cls, include_extras=True).items():
        if name == "kind" or hint in (tuple[Node, ...], Queue | None) or get_origin(hint) is Literal:
            continue
        assert get_origin(hint) is Annotated, f"{cls.__name__}.{name} needs a TextForm or a Span"
        kind, rule = get_args(hint)
        assert isinstance(rule, TextForm if kind is str else Span), f"{cls.__name__}.{name}"
        if isinstance(rule, TextForm):
            for bad in ("a\nb", "\n", "a\x1b[2J", "-oProxyCommand=id", "a`id`", "$(id)", "a;id\n", "a\0b", "\u202ea"):
                assert not rule.fits(bad), f"{cls.__name__}.{name} lets {bad!r} through"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"ssh_host": "h\n    ProxyCommand id"}, "ssh_host = 'h\\n    ProxyCommand id': must be a host name or an IP"),
        ({"ssh_host": "-oProxyCommand=id"}, "ssh_host"),
        ({"ssh_host": "fe80::1%eth0"}, "ssh_host"),
        ({"console": "/var/log/\x1b[2J"}, "console"),
        ({"memory_gb": float("nan")}, "memory_gb = nan: must be from 0 to"),
        ({"private_ip": "fe80::1%\n1"}, "private_ip"),
    ],
)
def test_a_hostile_value_of_a_node_is_refused(change: dict[str, object], expected: str) -> None:
    nodes = [GOOD["nodes"][0], {**GOOD["nodes"][1], **change}]
    assert expected in complaint(json.dumps({**GOOD, "nodes": nodes}))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"ssh_user": "u\n    ProxyCommand id"}, "ssh_user"),
        ({"ssh_user": "-l"}, "ssh_user"),
        ({"ssh_user": ""}, "ssh_user"),
        ({"identity_file": '/k" -oProxyCommand=id "'}, "identity_file"),
        ({"identity_file": "/k\nProxyCommand id"}, "identity_file"),
        ({"identity_file": "${HOME}/k"}, "identity_file"),
        ({"jump_host": "a b"}, "jump_host"),
        ({"jump_host": "u@h:0"}, "jump_host"),
        ({"jump_host": "u@h:99999"}, "jump_host"),
        ({"jump_host": "[::1"}, "jump_host"),
        ({"jump_host": "h\nx"}, "jump_host"),
        ({"interface": "$(id)"}, "interface"),
        ({"interface": "e" * 16}, "interface"),
        ({"shared_dir": "/s; id"}, "shared_dir"),
        ({"shared_dir": "/s/../../etc"}, "shared_dir"),
        ({"shared_dir": "s"}, "shared_dir"),
        ({"data_url": "s3://b/$(id)"}, "data_url"),
        ({"data_url": "http://b"}, "data_url"),
        ({"name": "../up"}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"hourly_usd": float("inf")}, "hourly_usd = inf"),
        ({"hourly_usd": -1}, "hourly_usd = -1"),
    ],
)
def test_a_hostile_value_of_a_cluster_is_refused(change: dict[str, object], expected: str) -> None:
    assert f"{expected}" in complaint(json.dumps({**GOOD, **change}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ssh_user", "jane.doe@example.org"),
        ("ssh_user", "svc_1"),
        ("identity_file", "~/.ssh/my key (2).pem"),
        ("identity_file", "/srv/j\u00fcrgen/.ssh/id"),
        ("jump_host", "ubuntu@[fd00::1]:2222"),
        ("jump_host", "fd00::1"),
        ("jump_host", "jane@example.org@bastion.example.org:22"),
        ("interface", "enp1s0f0.100"),
        ("interface", "br-9f"),
        ("shared_dir", "/mnt/fsx/team_a/"),
        ("data_url", "abfs://data@acct123.dfs.core.windows.net/a/b"),
        ("data_url", "s3://my-bucket.eu"),
    ],
)
def test_values_that_people_use_are_accepted(key: str, value: str) -> None:
    cluster = from_json(json.dumps({**GOOD, key: value}))
    assert getattr(cluster, key) == value


@pytest.mark.parametrize("text", ["[" * 100_000, '{"schema": ' + "9" * 5000 + "}"], ids=["deep", "long"])
def test_json_that_the_parser_gives_up_on_is_one_line(text: str) -> None:
    complaint(text)


@pytest.mark.parametrize("nodes", [None, [], {}, "node1", [None], ["node1"], [{}], [{"name": "a"}]])
def test_nodes_are_a_list_of_objects(nodes: object) -> None:
    assert "nodes" in complaint(json.dumps({**GOOD, "nodes": nodes}))


def test_an_address_is_kept_as_it_was_written() -> None:
    nodes = [{"name": "a", "private_ip": "FD00::0001"}]
    cluster = from_json(json.dumps({"schema": 1, "kind": "ssh", "nodes": nodes}))
    assert isinstance(cluster, SshCluster)
    assert ipaddress.ip_address(cluster.head.address) == ipaddress.ip_address("fd00::1")
