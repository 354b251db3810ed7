"""What of a stack is on this machine, whatever any state says; and a sweep of what the state does not know.

Everything of a stack carries its name: its control groups, its directory, the mounts below it, its bridge.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from infra.clouds.live_resource import Thing
from infra.clouds.local import bake, cgroup, firewall, network, owner, paths
from infra.clouds.local.nspawn import NSPAWN_RUN, Machine
from infra.state import operation

NETWORK = "network"
STACK_ID = "stack-id"
"""The resource that keeps whose the stack is (infra.state.stack_id)."""


def find(stack: str, ids: Collection[str] | None = None) -> list[Thing]:
    """Everything of a stack that exists on this machine.

    With `ids`, those that the user's stack of this name may have: what is another's is marked so.
    """
    things = _all(stack)
    whose = "" if ids is None else owner.stranger(stack, ids)
    return [replace(thing, ours=False, whose=whose) for thing in things] if whose else things


def _all(stack: str) -> list[Thing]:
    things = [*_machines(stack), *_mounts(stack), *_directories(stack), *_run_files(stack)]
    if (link := network.bridge_name(stack)) in {entry["ifname"] for entry in network.links()}:
        things.append(Thing("link", link, NETWORK))
    if firewall.is_open(link):
        things.append(Thing("firewall rule", f"iptables FORWARD {link}", NETWORK))
    if (said := owner.read(stack)) is not None:
        things.append(Thing("name", f"{stack}, taken by {said.said()}", STACK_ID))
    return things


def _machines(stack: str) -> list[Thing]:
    things = []
    for group in cgroup.groups(stack):
        for path in sorted(group.iterdir()):
            if path.is_dir():
                things.append(Thing("cgroup", str(path), path.name))
    for name in sorted({thing.owner for thing in things}):
        things += [Thing("process", _describe(pid), name) for pid in cgroup.processes(stack, name)]
    return things


def _describe(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        command = "(ended)"
    return f"{pid} {command[:60]}"


def _owner(stack: str, path: str) -> str:
    """The machine that a path below the stack's directory belongs to."""
    below = Path(path).relative_to(paths.stack(stack)).parts
    return {"nodes": below[1], "build": bake.BUILDER}.get(below[0], below[0]) if len(below) > 1 else below[0]


def _mounts(stack: str) -> list[Thing]:
    top = f"{paths.stack(stack)}/"
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [Thing("mount", point, _owner(stack, point)) for point in points if point.startswith(top)]


def _directories(stack: str) -> list[Thing]:
    found = [*paths.stack(stack).glob("nodes/*"), *paths.stack(stack).glob("build/*")]
    return [Thing("directory", str(path), _owner(stack, str(path))) for path in sorted(found)]


def _run_files(stack: str) -> list[Thing]:
    """What a killed systemd-nspawn leaves in /run, for the machines that the stack still has something else of."""
    names = {path.name for path in paths.stack(stack).glob("nodes/*")} | {bake.BUILDER}
    files = [(name, NSPAWN_RUN / "propagate" / f"{stack}-{name}") for name in sorted(names)]
    return [Thing("file", str(path), name) for name, path in files if path.exists()]


def sweep(stack: str, known: Collection[str], ids: Collection[str] | None = None) -> list[Thing]:
    """Remove everything of a stack whose owner is not among `known` resources; what it was.

    With `ids` nothing of a stack that has another id. Waits for operations that are still under way: those of a killed
    `up` end by themselves.
    """
    if not paths.stack(stack).exists() and not find(stack):
        return []
    if ids is not None and owner.stranger(stack, ids):
        return []
    with operation.lock(paths.stack(stack), alone=True, timeout=60.0):
        swept = [thing for thing in find(stack) if thing.owner not in known]
        for name in sorted({thing.owner for thing in swept} - {NETWORK, STACK_ID}):
            for machine in _all_of(stack, name):
                machine.remove()
        if NETWORK in {thing.owner for thing in swept}:
            network.remove(stack)
        _remove_empty_groups(stack)
        if STACK_ID in {thing.owner for thing in swept} and (said := owner.read(stack)) is not None:
            owner.release(stack, said.stack_id)
    paths.tidy(stack)
    return swept


def _all_of(stack: str, name: str) -> list[Machine]:
    """The machine of that name; for the builder one for each build directory."""
    if name != bake.BUILDER:
        return [Machine(stack, name, paths.node(stack, name))]
    builds = sorted((paths.stack(stack) / "build").glob("*"))
    return [Machine(stack, name, path) for path in builds] or [Machine(stack, name, paths.build(stack, "none"))]


def _remove_empty_groups(stack: str) -> None:
    if not cgroup.processes(stack):
        cgroup.remove(stack)
