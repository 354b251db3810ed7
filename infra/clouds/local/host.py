"""What the local stack needs of this machine; checked before anything is changed."""

from __future__ import annotations

import ipaddress
import json
import os
import platform
import shutil

from infra.clouds.local import base_image, cgroup, ids, image, network, paths, system_command
from infra.config.settings import Settings
from infra.config.values import SettingsError
from infra.errors import UsageError
from infra.machine import MachineType

TOOLS = {
    **{"systemd-nspawn": "systemd-container", "ip": "iproute2", "ssh-keygen": "openssh-client"},
    **{"mount": "mount", "unshare": "util-linux", "nsenter": "util-linux", "find": "findutils"},
}
"""Commands that a node needs -> their packages."""
BAKE_TOOLS = {"mmdebstrap": "mmdebstrap"}
BAKE_GB = {"native": 7, "ipex": 9}
"""GiB that a bake of a profile needs with torch's default build: measured 5.8 and 7.7, including 0.3 for the base."""
NODE_GB = 0.5
"""GiB for a node's own files, without checkpoints."""
DEFAULTS = ("default", "0.0.0.0/1", "128.0.0.0/1")
"""Destinations of a default route; VPNs often use the two halves."""


def machine(settings: Settings) -> MachineType:
    """A node's machine: what the settings ask for, at most what this machine has."""
    cores = min(settings.local.cpus, os.cpu_count() or 1)
    return MachineType(name="a machine on this host", cores=cores, memory_gb=settings.local.memory_mb / 1024)


def check_machine() -> None:
    """Raise UsageError if this machine cannot boot nodes, whatever the settings."""
    why = ""
    if platform.system() != "Linux":
        why = f"needs a Linux machine, and this is {platform.system()}"
    elif os.geteuid() != 0:
        why = "boots machines, which only root can do; run it with sudo"
    elif shutil.which("apt-get") is None:
        why = "needs Debian or Ubuntu, and this machine has no apt-get"
    elif not (cgroup.unified().parent / "cgroup.procs").exists():
        why = "needs control groups v2 (the unified hierarchy) on /sys/fs/cgroup"
    elif missing := ", ".join(cgroup.missing()):
        why = f"needs the control groups' controllers cpu, memory and pids; this machine lacks {missing} "
        why += "(in a container: the host has to delegate them)"
    if why := why or ids.why_unavailable():
        raise UsageError(f"cluster = 'local': {why}")


def check(settings: Settings, image_id: str) -> None:
    """Raise UsageError for the first thing that the stack needs and this machine lacks. Changes nothing."""
    _check_home()
    must_bake = image.record(image_id) is None
    if parent := (image.record(image_id) or {}).get("parent"):
        raise SettingsError(
            "image", image_id, f"an image without a scheduler, such as {parent}, on which this one is built"
        )
    if must_bake and settings.image != "bake":
        known = ", ".join(image.baked()) or "none"
        raise SettingsError("image", settings.image, f"'bake' or a baked image; there are: {known}")
    _check_tools({**TOOLS, **BAKE_TOOLS} if must_bake else TOOLS)
    if must_bake and not base_image.sources():
        raise UsageError("cluster = 'local': /etc/apt names no archive of Debian or Ubuntu to bake from")
    if settings.local.cpus > (os.cpu_count() or 1):
        allowed = f"a whole number from 1 to {os.cpu_count()}: this machine has no more"
        raise SettingsError("cpus", settings.local.cpus, allowed)
    _check_routes(settings)
    _check_disk(BAKE_GB[settings.profile] if must_bake else 0, settings.nodes)


def _check_home() -> None:
    home = paths.home()
    # overlayfs separates directories by colons, and mount options by commas.
    if not home.is_absolute() or home.is_file() or set(str(home)) & set(":,\\"):
        raise SettingsError("TRAINYARD_HOME", str(home), "the absolute path of a directory, without ':', ',' and '\\'")


def _check_tools(tools: dict[str, str]) -> None:
    missing = sorted({package for tool, package in tools.items() if shutil.which(tool) is None})
    if missing:
        raise UsageError(f"cluster = 'local': tools are missing; install them: apt-get install {' '.join(missing)}")


def _check_routes(settings: Settings) -> None:
    own = network.bridge_name(settings.stack)
    for route in json.loads(system_command.run(["ip", "-json", "-4", "route", "show", "table", "main"])):
        if route["dst"] in DEFAULTS or route.get("dev") == own:
            continue
        if ipaddress.IPv4Network(route["dst"], strict=False).overlaps(settings.cidr):
            where = f"{route['dst']} on {route.get('dev', 'a route without device')}"
            another = f"fab config set cidr NETWORK --stack {settings.stack}"
            allowed = f"a network that this machine has no route to; it has {where}; for another one: {another}"
            raise SettingsError("cidr", str(settings.cidr), allowed)


def _check_disk(bake_gb: float, nodes: int) -> None:
    home = paths.home()
    directory = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(directory).free / 2**30
    needed = bake_gb + NODE_GB * nodes
    if free < needed:
        remedy = "free some, or set TRAINYARD_HOME to another disk"
        raise UsageError(f"{home}: {free:.1f} GiB free, and {needed:.1f} GiB are needed; {remedy}")
