"""Lets a stack's own bridge through the host's firewall.

With br_netfilter, which Docker enables, frames between two ports of a bridge pass the host's FORWARD chain, and Docker
sets that chain's policy to DROP: the nodes could not reach each other, without any error message.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from infra.clouds.local import system_command

SWITCH = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")


def _rule(bridge: str) -> list[str]:
    return ["FORWARD", "-i", bridge, "-o", bridge, "-j", "ACCEPT"]


def applies() -> bool:
    """Whether frames within a bridge pass the host's firewall."""
    return SWITCH.exists() and SWITCH.read_text().strip() == "1" and shutil.which("iptables") is not None


def is_open(bridge: str) -> bool:
    """Whether the bridge has its rule."""
    if shutil.which("iptables") is None:
        return False
    rules = system_command.run(["iptables", "--wait", "--list-rules", "FORWARD"]).splitlines()
    return " ".join(["-A", *_rule(bridge)]) in rules


def open_for(bridge: str) -> None:
    """Accept traffic within the bridge. Safe to repeat."""
    if applies() and not is_open(bridge):
        system_command.run(["iptables", "--wait", "--insert", *_rule(bridge)])


def close_for(bridge: str) -> None:
    """Remove the bridge's rule. A missing rule is no error."""
    while is_open(bridge):
        system_command.run(["iptables", "--wait", "--delete", *_rule(bridge)])
