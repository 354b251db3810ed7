"""Rules about what a firewall lets in, and from which networks."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from infra.policy.conditions import is_off, itself, same, several, values
from infra.policy.resource_types import EKS, GROUP, GROUP_RULE, INGRESS, NSG, NSG_RULE
from infra.policy.rule import DeclaredResource, Parts, PolicyRule, Props
from infra.policy.unknown import UndecidedError, Unknown

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
SSH = 22
LARGEST = {4: 16, 6: 32}
"""IP version -> shortest allowed prefix: the settings' own limit, and the usual allocation of an IPv6 provider."""
PRIVATE = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7", "fe80::/10")
)
MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
"""All of IPv4, mapped into IPv6."""
EVERYBODY = ("*", "any", "internet", "azurecloud")
"""Azure's names for everybody; AzureCloud includes every customer's machines."""
OWN = ("virtualnetwork", "azureloadbalancer")
_SPAN = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


@dataclass(frozen=True)
class Opening:
    """A source, and the protocol and ports open to it. Each may be unknown."""

    source: Any
    protocol: Any
    ports: Any
    """Texts such as 22, 20-30 or *; for AWS (from, to)."""


def _aws(path: str, *keys: str) -> Parts:
    """The openings of the rules at a path of an AWS resource; `keys` hold a rule's sources."""

    def openings(resource: DeclaredResource) -> Iterator[Opening]:
        for rule in values(resource.props, path):
            ports = (rule.get("fromPort"), rule.get("toPort"))
            for key in (*keys, "prefixListId", "prefixListIds"):
                for source in several(rule.get(key)):
                    yield Opening(source, rule.get("ipProtocol" if "cidrIpv4" in keys else "protocol"), [ports])

    return openings


def _of_group_rule(resource: DeclaredResource) -> Iterable[Opening]:
    return _aws("", "cidrBlocks", "ipv6CidrBlocks")(resource) if resource.props.get("type") == "ingress" else ()


def _azure(path: str) -> Parts:
    """The openings of the rules at a path of an Azure resource."""

    def openings(resource: DeclaredResource) -> Iterator[Opening]:
        for rule in values(resource.props, path):
            if isinstance(rule, Unknown):
                yield Opening(rule, rule, [rule])
            elif not (_is_not(rule.get("direction"), "Inbound") or _is_not(rule.get("access"), "Allow")):
                ports = [*several(rule.get("destinationPortRange")), *several(rule.get("destinationPortRanges"))]
                for key in ("sourceAddressPrefix", "sourceAddressPrefixes"):
                    for source in several(rule.get(key)):
                        yield Opening(source, rule.get("protocol"), ports)

    return openings


def _is_not(value: Any, wanted: str) -> bool:
    """Whether the value is known to differ. An unknown value may be the wanted one, so the rule is still checked."""
    return not isinstance(value, Unknown) and not same(wanted).allows(value)


def _from(source: Any) -> str | None:
    """Why the source is too broad, or None."""
    text = str(source).strip()
    word = text.lower()
    if word.startswith("pl-"):
        return f"from {text}: the networks of a prefix list are not declared here"
    if word in OWN:
        return None
    if word in EVERYBODY or word.startswith("azurecloud."):
        return f"from anywhere ({text})"
    try:
        network = _network(text)
    except ValueError:
        return f"from {text!r}, which is no network that can be read"
    if network.prefixlen == 0 or network.network_address.is_unspecified:
        return f"from anywhere ({text})"
    if network.prefixlen < LARGEST[network.version] and not any(_in(network, private) for private in PRIVATE):
        return f"from {text}, which is larger than one owner's network"
    return None


def _network(text: str) -> Network:
    network = ipaddress.ip_network(text, strict=False)
    if isinstance(network, ipaddress.IPv6Network) and network.subnet_of(MAPPED):
        address = network.network_address.ipv4_mapped
        return ipaddress.ip_network(f"{address}/{network.prefixlen - MAPPED.prefixlen}", strict=False)
    return network


def _in(network: Network, other: Network) -> bool:
    return (
        network.version == other.version and network.network_address in other and network.prefixlen >= other.prefixlen
    )


def _lets_ssh_in(opening: Opening) -> bool:
    protocol = str(opening.protocol).lower()
    if protocol not in ("tcp", "6", "-1", "all", "*", "none"):
        return False
    if protocol in ("-1", "all") or not opening.ports:
        return True
    return any(_spans_ssh(ports) for ports in opening.ports)


def _spans_ssh(ports: Any) -> bool:
    if isinstance(ports, tuple):
        low, high = ports
        return low is None or high is None or int(low) <= SSH <= int(high) or int(low) < 0
    for text in str(ports).replace(" ", "").split(","):
        span = _SPAN.fullmatch(text)
        if span is None or int(span[1]) <= SSH <= int(span[2] or span[1]):
            return True  # *, or unreadable
    return False


def _ssh(opening: Opening) -> str | None:
    source = _from(opening.source)
    return f"SSH is let in {source}" if source and _lets_ssh_in(opening) else None


def _anything(opening: Opening) -> str | None:
    source = _from(opening.source)
    if source is None:
        return None
    try:
        ssh = _lets_ssh_in(opening)
    except UndecidedError:
        ssh = False  # unknown ports: with so broad a source it is a violation either way
    ports = ", ".join(map(repr, opening.ports)) or "all"
    return None if ssh else f"protocol {opening.protocol!r}, ports {ports}, is let in {source}"


def _api(cluster: Props) -> str | None:
    """An EKS cluster's API; without networks that are given, it is open to everybody."""
    config = cluster.get("vpcConfig") or {}
    if is_off.allows(config.get("endpointPublicAccess")):
        return None
    given = several(config.get("publicAccessCidrs"))
    if not given:
        return "the Kubernetes API is let in from anywhere: vpcConfig.publicAccessCidrs must be given"
    found = next(filter(None, map(_from, given)), None)
    return f"the Kubernetes API is let in {found}" if found else None


PARTS: dict[str, Parts] = {
    INGRESS: _aws("", "cidrIpv4", "cidrIpv6"),
    GROUP: _aws("ingress[]", "cidrBlocks", "ipv6CidrBlocks"),
    GROUP_RULE: _of_group_rule,
    NSG: _azure("securityRules[]"),
    NSG_RULE: _azure(""),
}
RULES = (
    PolicyRule(
        "no-ssh-from-anywhere",
        "SSH is let in only from networks of a known owner, in IPv4 and IPv6 "
        "(CKV_AWS_24, CKV_AZURE_10, CIS AWS 5.0 5.3, CIS AWS 5.0 5.4, CIS Azure 3.0 7.2).",
        PARTS,
        _ssh,
    ),
    PolicyRule(
        "nothing-from-anywhere",
        "Nothing else is let in from networks that have no one owner "
        "(CKV_AWS_25, CKV_AWS_260, CKV_AWS_277, CKV_AZURE_9, CKV_AZURE_77, CKV_AZURE_160, CIS AWS 5.0 5.3, CIS AWS "
        "5.0 5.4, CIS Azure 3.0 7.1, CIS Azure 3.0 7.3, CIS Azure 3.0 7.4).",
        PARTS,
        _anything,
    ),
    PolicyRule(
        "kubernetes-api-not-public",
        "The API of a Kubernetes cluster answers only networks of a known owner (CKV_AWS_38, CKV_AWS_39).",
        {EKS: itself},
        _api,
    ),
)
