"""The network of a local stack: its own bridge, on which the host has the first address.

It is isolated: the nodes have no route to the outside or to other stacks.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource

from infra.clouds.dynamic_provider import PlainProvider
from infra.clouds.local import firewall, paths, system_command
from infra.errors import OperationError
from infra.state import operation


def bridge_name(stack: str) -> str:
    """The bridge's name. A link's name has at most 15 characters; a stack's may have more."""
    return "ty" + hashlib.sha256(stack.encode()).hexdigest()[:10]


def alias(stack: str) -> str:
    """The link's alias, which marks it as the stack's own."""
    return f"trainyard:{stack}"


def links() -> list[dict[str, Any]]:
    """All links of the host, as `ip -json` reports them."""
    found: list[dict[str, Any]] = json.loads(system_command.run(["ip", "-json", "address", "show"]))
    return found


def find(stack: str) -> dict[str, Any] | None:
    """The stack's bridge, or None. Raises OperationError for a link of that name with another owner."""
    name, own = bridge_name(stack), alias(stack)
    for link in links():
        if link["ifname"] == name:
            # A link without an alias is ours: its creation was interrupted before the alias was set.
            if link.get("ifalias", own) != own:
                raise OperationError(f"link {name} exists but is not stack {stack}'s; remove it: ip link delete {name}")
            return link
    return None


def remove(stack: str) -> None:
    """Remove the stack's bridge. A missing one is no error."""
    firewall.close_for(bridge_name(stack))
    if find(stack) is not None:
        system_command.run(["ip", "link", "delete", bridge_name(stack)])


def _gateway(cidr: str) -> str:
    network = ipaddress.IPv4Network(cidr)
    return f"{network[1]}/{network.prefixlen}"


def _has_address(link: dict[str, Any], gateway: str) -> bool:
    return any(f"{info.get('local')}/{info.get('prefixlen')}" == gateway for info in link.get("addr_info", []))


class NetworkProvider(PlainProvider):
    """Create makes the bridge, or adopts one that a killed `up` has left."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Make the bridge with its address, alias and rule of the firewall, or what is missing of them. OperationError
        if a link of its name is not the stack's, or has another address."""
        stack, gateway = props["stack"], _gateway(props["cidr"])
        name = bridge_name(stack)
        paths.close()
        with operation.lock(paths.stack(stack)):
            link = find(stack)
            if link is None:
                system_command.run(["ip", "link", "add", "name", name, "type", "bridge"])
                link = {}
            elif link.get("addr_info") and not _has_address(link, gateway):
                raise OperationError(f"link {name} has another address than {gateway}; run: fab recover")
            if not _has_address(link, gateway):
                system_command.run(["ip", "address", "add", gateway, "dev", name])
            system_command.run(["ip", "link", "set", name, "alias", alias(stack), "up"])
            firewall.open_for(name)
        return CreateResult(id_=name, outs={**props, "bridge": name})

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        """Another stack or network replaces the bridge, the old one first: both would have one name."""
        changed = [key for key in ("stack", "cidr") if olds[key] != news[key]]
        return DiffResult(changes=bool(changed), replaces=changed, delete_before_replace=True)

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        """Dropped from the state if no bridge has the address, as after a reboot of the host: `up` makes it again."""
        link = find(props["stack"])
        there = link is not None and _has_address(link, _gateway(props["cidr"]))
        return ReadResult(id_=id_ if there else "", outs=props if there else {})

    def delete(self, id_: str, props: dict[str, Any]) -> None:
        """Remove the bridge and its rule, then the stack's folder if it is empty. OperationError for another's link."""
        with operation.lock(paths.stack(props["stack"])):
            remove(props["stack"])
        paths.tidy(props["stack"])


class Network(Resource, module="local", name="Network"):
    """A stack's bridge; the host has the network's first address."""

    bridge: pulumi.Output[str]

    def __init__(self, name: str, *, stack: str, cidr: str, opts: pulumi.ResourceOptions) -> None:
        super().__init__(NetworkProvider(), name, {"stack": stack, "cidr": cidr, "bridge": None}, opts)
