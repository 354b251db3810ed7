"""Finds a stack's resources on this machine, and removes those that are not in its state.

Control groups, directory, mounts and bridge are all named after the stack.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from infra.clouds.live_resource import LiveResource
from infra.clouds.local import bake, cgroup, firewall, network, owner, paths
from infra.clouds.local.kubernetes import folder as kubernetes_folder
from infra.clouds.local.nspawn import NSPAWN_RUN, NspawnMachine
from infra.clouds.local.slurm import folder as slurm_folder
from infra.state import operation

NETWORK = "network"
FOLDERS = (slurm_folder, kubernetes_folder)
"""Modules of what the nodes of a stack with a scheduler share."""
STACK_ID = "stack-id"
"""The resource that holds the stack's id (infra.state.stack_id)."""
_REMAINS = "remains of "
"""Begins the owner of a directory that a removal has left in part. An audit lists it and a sweep removes it, although
the state may still have the machine or the folder that it was."""


def find(stack: str, ids: Collection[str] | None = None) -> list[LiveResource]:
    """Everything of a stack that exists on this machine.

    `ids`: the ids of the user's own stack; if another id owns the name, the resources are marked as somebody else's.
    """
    live_resources = _all(stack)
    whose = "" if ids is None else owner.stranger(stack, ids)
    return [replace(live, ours=False, whose=whose) for live in live_resources] if whose else live_resources


def _all(stack: str) -> list[LiveResource]:
    live_resources = [*_machines(stack), *_mounts(stack), *_directories(stack), *_run_files(stack)]
    if (link := network.bridge_name(stack)) in {entry["ifname"] for entry in network.links()}:
        live_resources.append(LiveResource("link", link, NETWORK))
    if firewall.is_open(link):
        live_resources.append(LiveResource("firewall rule", f"iptables FORWARD {link}", NETWORK))
    if (of := owner.read(stack)) is not None:
        live_resources.append(LiveResource("name", f"{stack}, taken by {of.in_words()}", STACK_ID))
    return live_resources


def _machines(stack: str) -> list[LiveResource]:
    groups = [path for group in cgroup.groups(stack) for path in sorted(group.iterdir()) if path.is_dir()]
    live_resources = [LiveResource("cgroup", str(path), path.name) for path in groups]
    for name in sorted({live.owner for live in live_resources}):
        live_resources += [LiveResource("process", _describe(pid), name) for pid in cgroup.processes(stack, name)]
    return live_resources


def _describe(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        command = "(ended)"
    return f"{pid} {command[:60]}"


def _owner(stack: str, path: str) -> str:
    """The machine to which a path below the stack's directory belongs."""
    below = Path(path).relative_to(paths.stack(stack)).parts
    return {"nodes": below[1], "build": bake.BUILDER}.get(below[0], below[0]) if len(below) > 1 else below[0]


def _mounts(stack: str) -> list[LiveResource]:
    top = f"{paths.stack(stack)}/"
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [LiveResource("mount", point, _owner(stack, point)) for point in points if point.startswith(top)]


def _directories(stack: str) -> list[LiveResource]:
    found = [*paths.stack(stack).glob("nodes/*"), *paths.stack(stack).glob("build/*")]
    found += [folder.path(stack) for folder in FOLDERS if folder.path(stack).exists()]
    return [LiveResource("directory", str(path), _owner_of_directory(stack, path)) for path in sorted(found)]


def _owner_of_directory(stack: str, path: Path) -> str:
    name = _owner(stack, str(path))
    folders = {folder.NAME: folder for folder in FOLDERS}
    if name in folders:
        is_complete = folders[name].is_complete(stack)
    else:
        is_complete = NspawnMachine(stack, name, path).is_complete()
    return name if is_complete else f"{_REMAINS}{name}"


def _run_files(stack: str) -> list[LiveResource]:
    """Files that a killed systemd-nspawn leaves in /run, for machines of which something else exists too."""
    names = {path.name for path in paths.stack(stack).glob("nodes/*")} | {bake.BUILDER}
    files = [(name, NSPAWN_RUN / "propagate" / f"{stack}-{name}") for name in sorted(names)]
    return [LiveResource("file", str(path), name) for name, path in files if path.exists()]


def sweep(stack: str, known: Collection[str], ids: Collection[str] | None = None) -> list[LiveResource]:
    """Remove everything of a stack whose owner is not in `known`; returns what was removed.

    With `ids`, nothing of a stack with another id. Waits for operations under way: those of a killed `up` end by
    themselves.
    """
    if not paths.stack(stack).exists() and not find(stack):
        return []
    if ids is not None and owner.stranger(stack, ids):
        return []
    with operation.lock(paths.stack(stack), exclusive=True, timeout=60.0):
        swept = [live for live in find(stack) if live.owner not in known]
        names = {live.owner.removeprefix(_REMAINS) for live in swept}
        for name in sorted(names - {NETWORK, STACK_ID, *(folder.NAME for folder in FOLDERS)}):
            for machine in _all_of(stack, name):
                machine.remove()
        for folder in FOLDERS:
            if folder.NAME in names:
                folder.remove(stack)
        if NETWORK in names:
            network.remove(stack)
        if not cgroup.processes(stack):
            cgroup.remove(stack)
        if STACK_ID in names and (of := owner.read(stack)) is not None:
            owner.release(stack, of.stack_id)
    paths.tidy(stack)
    return swept


def _all_of(stack: str, name: str) -> list[NspawnMachine]:
    """The machine of that name; for the builder, one for each build directory."""
    if name != bake.BUILDER:
        return [NspawnMachine(stack, name, paths.node(stack, name))]
    builds = sorted((paths.stack(stack) / "build").glob("*"))
    return [NspawnMachine(stack, name, path) for path in builds or [paths.build(stack, "none")]]
