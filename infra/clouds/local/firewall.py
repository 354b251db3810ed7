"""Let a stack's own bridge through the host's firewall.

Where br_netfilter is on, and Docker turns it on, frames from one port of a bridge to another pass the host's
FORWARD chain, and Docker makes its policy DROP: the nodes would not reach each other, without a word anywhere.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from infra.clouds.local import system_command

SWITCH = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")


def _rule(bridge: str) -> list[str]:
    return ["FORWARD", "-i", bridge, "-o", bridge, "-j", "ACCEPT"]


def applies() -> bool:
    """Whether frames within a bridge pass the host's firewall at all."""
    return SWITCH.exists() and SWITCH.read_text().strip() == "1" and shutil.which("iptables") is not None


def is_open(bridge: str) -> bool:
    """Whether the bridge has its rule."""
    if shutil.which("iptables") is None:
        return False
    rules = system_command.run(["iptables", "--wait", "--list-rules", "FORWARD"]).splitlines()
    return " ".join(["-A", *_rule(bridge)]) in rules


def open_for(bridge: str) -> None:
    """Accept what goes from the bridge to itself; twice is once."""
    if applies() and not is_open(bridge):
        system_command.run(["iptables", "--wait", "--insert", *_rule(bridge)])


def close_for(bridge: str) -> None:
    """Take the bridge's rule out again; without one is fine."""
    while is_open(bridge):
        system_command.run(["iptables", "--wait", "--delete", *_rule(bridge)])
