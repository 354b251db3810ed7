"""Make the nodes of a cluster known to each other: names, addresses, host keys, and each node's own SSH key.

A node's private key is made on it and never leaves it. At most two round trips per node: one collects each node's
keys, the second writes the same files to every node where they differ.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Sequence
from typing import Any

from invoke.exceptions import Exit

from fabfile.remote import node_program
from fabfile.remote.command import Result
from fabfile.remote.fleet import Fleet
from fabfile.remote.known_hosts import host_pattern
from infra.inventory import Node
from node.ssh_trust import BEGIN, END, digest

_PUBLIC_KEY = re.compile(r"(ssh-ed25519 [A-Za-z0-9+/]+={0,2})( .*)?")
_TIMEOUT = 60


def join(fleet: Fleet) -> list[str]:
    """Make the nodes known to each other; returns the names of the nodes that were changed."""
    nodes, user = fleet.cluster.nodes, fleet.cluster.ssh_user
    facts = {name: _checked(name, result) for name, result in _run(fleet, nodes, "facts").items()}
    blocks = make_blocks(nodes, user, facts, {node.name: _host_key(fleet, node) for node in nodes})
    stale = [node for node in nodes if facts[node.name]["digest"] != digest(blocks)]
    if stale:
        order = json.dumps({"blocks": blocks, "names": [node.name for node in nodes]})
        _run(fleet, stale, "install", order, sudo=user != "root")
    return [node.name for node in stale]


def make_blocks(
    nodes: tuple[Node, ...], user: str, facts: dict[str, dict[str, str]], host_keys: dict[str, str]
) -> dict[str, str]:
    """Trainyard's block of each file, the same on every node."""
    hosts, known, keys, config = [], [], [], []
    for node in nodes:
        port = int(facts[node.name]["port"])
        address = str(ipaddress.ip_address(node.private_ip))
        patterns = [host_pattern(node.name, port), host_pattern(address, port)]
        hosts.append(f"{address} {node.name}")
        known.append(f"{','.join(patterns)} {host_keys[node.name]}")
        keys.append(f"{facts[node.name]['key']} trainyard@{node.name}")
        config += [f"Host {node.name} {address}", f"    Port {port}"]
    config += [
        "Host " + " ".join(f"{node.name} {node.private_ip}" for node in nodes),
        f"    User {user}",
        "    StrictHostKeyChecking yes",
        "    GlobalKnownHostsFile /etc/ssh/ssh_known_hosts",
        "    UserKnownHostsFile /dev/null",
        "    UpdateHostKeys no",
        "    BatchMode yes",
        "    IdentityFile ~/.ssh/id_ed25519",
        "    IdentitiesOnly yes",
        "Match all",  # lines after our block apply to all hosts again
    ]
    bodies = {"hosts": hosts, "known_hosts": known, "authorized_keys": keys, "ssh_config": config}
    return {name: "\n".join([BEGIN, *body, END, ""]) for name, body in bodies.items()}


def _run(fleet: Fleet, nodes: Sequence[Node], *argv: str, sudo: bool = False) -> dict[str, Result]:
    results = node_program.run(fleet, "trust", *argv, nodes=nodes, timeout=_TIMEOUT, sudo=sudo)
    for name, result in results.items():
        if not result.ok:
            raise Exit(f"{name}: cannot be joined to the others: {result.why}", code=1)
    return results


def _checked(name: str, result: Result) -> dict[str, str]:
    """A node's answer, checked, as its key goes into every other node's authorized_keys."""
    answer: dict[str, Any] = json.loads(result.stdout)
    match = _PUBLIC_KEY.fullmatch(str(answer["key"]))
    if match is None or not str(answer["port"]).isdigit():
        raise Exit(f"{name}: cannot be joined to the others: not a public key: {answer['key']!r}", code=1)
    return {"key": match[1], "port": str(answer["port"]), "digest": str(answer["digest"])}


def _host_key(fleet: Fleet, node: Node) -> str:
    """The host key of the inventory, else the one that the operator's known_hosts has just confirmed."""
    if node.host_key:
        return node.host_key
    key = fleet.connection(node).transport.get_remote_server_key()
    return f"{key.get_name()} {key.get_base64()}"
