"""infra.clouds.local without root: what the providers decide, and what a machine must be."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import shutil
import time
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.clouds.local import base_image, cgroup, host, ids, image, image_cache, network, nspawn, paths, system_command
from infra.clouds.local.image import ImageProvider
from infra.clouds.local.network import NetworkProvider
from infra.clouds.local.nodes import NodeProvider
from infra.clouds.local.nspawn import Machine
from infra.clusters import local
from infra.config.settings import Settings, load
from infra.errors import OperationError, UsageError
from infra.state import operation

IMAGE = "0123456789abcdef"
STACKS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True)
Disk = namedtuple("Disk", "free")

NODE = {
    "stack": "local",
    "name": "node1",
    "address": "10.77.0.10/24",
    "bridge": "ty0123456789",
    "image": IMAGE,
    "user_data": "#cloud-config",
    "cpus": 1,
    "memory_mb": 2048,
    "host_key": None,
    "console": None,
    "alive": None,
}
MADE = {**NODE, "host_key": "ssh-ed25519 AAAA", "console": "/console.log", "alive": True}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of everything."""
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path))
    return tmp_path


def bake(home: Path, name: str, base_key: str = "base1") -> None:
    """An image in the cache, as a bake leaves it."""
    (home / "images" / name / "layer").mkdir(parents=True)
    (home / "base" / base_key / "rootfs").mkdir(parents=True, exist_ok=True)
    known = {"base": base_key, "profile": "native", "collectives": "gloo", "versions": {"torch": "2.13.0"}}
    known["ids"] = ids.RANGE
    (home / "images" / name / "image.json").write_text(json.dumps(known))


# --- names ---


@given(stack=STACKS, other=STACKS)
def test_a_bridge_has_a_name_that_a_link_can_have_and_no_other_stack_has(stack: str, other: str) -> None:
    assert len(network.bridge_name(stack)) <= 15
    assert (network.bridge_name(stack) == network.bridge_name(other)) == (stack == other)


def test_everything_of_a_stack_is_below_its_own_directory(home: Path) -> None:
    assert paths.node("local", "node1") == home / "stacks/local/nodes/node1"
    assert paths.build("local", IMAGE) == home / f"stacks/local/build/{IMAGE}"
    paths.node("local", "node1").mkdir(parents=True)
    paths.tidy("local")
    assert paths.node("local", "node1").exists(), "what something is in stays"
    paths.node("local", "node1").rmdir()
    paths.tidy("local")
    assert not paths.stack("local").exists()


# --- what a change means ---


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every machine runs."""
    monkeypatch.setattr(Machine, "is_alive", lambda self: True)


@pytest.mark.parametrize("key", ["stack", "name", "address", "bridge", "image", "user_data"])
def test_a_node_with_another_identity_is_another_node(key: str, alive: None) -> None:
    found = NodeProvider().diff("local-node1", MADE, {**NODE, key: "other"})
    assert (found.changes, found.replaces, found.delete_before_replace) == (True, [key], True)


@pytest.mark.parametrize("limits", [{"cpus": 2}, {"memory_mb": 4096}, {"cpus": 2, "memory_mb": 512}], ids=str)
def test_limits_change_on_a_running_node(limits: dict[str, int], alive: None) -> None:
    found = NodeProvider().diff("local-node1", MADE, {**NODE, **limits})
    assert (found.changes, found.replaces) == (True, [])


def test_an_unchanged_node_is_left_alone(alive: None) -> None:
    found = NodeProvider().diff("local-node1", {**MADE, "cpus": 1.0, "memory_mb": 2048.0}, NODE)
    assert (found.changes, found.replaces) == (False, []), "numbers come back as floats"


def test_a_dead_node_is_replaced(alive: None) -> None:
    assert NodeProvider().diff("local-node1", {**MADE, "alive": False}, NODE).replaces == ["alive"]


def test_a_node_that_died_since_the_last_look_is_replaced(home: Path) -> None:
    assert NodeProvider().diff("local-node1", {**MADE, "stack": "gone"}, {**NODE, "stack": "gone"}).replaces == [
        "alive"
    ]


def test_a_node_of_which_nothing_is_there_is_gone(home: Path) -> None:
    assert NodeProvider().read("local-node1", {**MADE, "stack": "no-such-stack"}).id == ""


def test_a_network_of_another_range_is_another_network() -> None:
    olds = {"stack": "local", "cidr": "10.77.0.0/24", "bridge": "ty0123456789"}
    same = NetworkProvider().diff("ty", olds, {**olds, "bridge": None})
    other = NetworkProvider().diff("ty", olds, {**olds, "cidr": "10.78.0.0/24", "bridge": None})
    assert (same.changes, other.changes, other.replaces, other.delete_before_replace) == (False, True, ["cidr"], True)


def test_an_image_is_replaced_only_by_one_of_another_content(home: Path) -> None:
    olds = {"stack": "local", "image": IMAGE, "user_data": "old", "software": "{}"}
    assert not ImageProvider().diff(IMAGE, olds, {**olds, "user_data": "new"}).changes
    found = ImageProvider().diff(IMAGE, olds, {**olds, "image": "f" * 16})
    assert (found.replaces, found.delete_before_replace) == (["image"], False), "the old nodes stay until it is baked"


def test_an_image_in_the_cache_is_taken_and_never_deleted(home: Path) -> None:
    bake(home, IMAGE)
    props = {"stack": "local", "image": IMAGE, "user_data": "", "software": None}
    made = ImageProvider().create(props)
    assert made.outs and made.id == IMAGE and json.loads(made.outs["software"]) == {"torch": "2.13.0"}
    assert ImageProvider().read(IMAGE, props).id == IMAGE
    ImageProvider().delete(IMAGE, props)
    assert image.baked() == [IMAGE]
    assert ImageProvider().read("f" * 16, props).id == ""


def test_an_image_that_is_asked_for_and_not_there_says_which_are(home: Path) -> None:
    bake(home, IMAGE)
    props = {"stack": "local", "image": "f" * 16, "user_data": "", "software": None}
    with pytest.raises(OperationError, match=f"not in .*; there are: {IMAGE}"):
        ImageProvider().create(props)


def test_an_image_without_its_record_is_none(home: Path) -> None:
    bake(home, IMAGE)
    (home / "images" / IMAGE / "image.json").unlink()
    assert image.baked() == [] and image.record(IMAGE) is None
    with pytest.raises(OperationError):
        image.layers(IMAGE)


# --- the cache ---


def test_prune_removes_what_no_node_was_booted_from(home: Path) -> None:
    bake(home, "a" * 16, "base1")
    bake(home, "b" * 16, "base1")
    bake(home, "c" * 16, "base2")
    spec = paths.node("local", "node1") / "spec.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"image": "a" * 16}))
    assert [row["used_by"] for row in image_cache.listing()] == [["local"], [], []]
    known = {"base": "base3"}  # of a version that had no ids of its own
    for name, stack in (("d" * 16, "local"), ("e" * 16, "")):
        bake(home, name, "base3")
        (home / "images" / name / "image.json").write_text(json.dumps(known))
        if stack:
            spec = paths.node(stack, "node2") / "spec.json"
            spec.parent.mkdir(parents=True)
            spec.write_text(json.dumps({"image": name}))
    assert image.record("e" * 16) is None and image.outdated() == ["d" * 16, "e" * 16]
    removed = image_cache.prune()
    assert f"image {'e' * 16} (of a version whose nodes were root on this machine)" in removed
    assert image.outdated() == ["d" * 16] and (home / "base/base3").is_dir(), "a node runs on it"
    removed.remove(f"image {'e' * 16} (of a version whose nodes were root on this machine)")
    assert [line.split(" (")[0] for line in removed] == [f"image {'b' * 16}", f"image {'c' * 16}", "base base2"]
    assert image.baked() == ["a" * 16] and (home / "base/base1").is_dir()
    assert image_cache.prune() == []


def test_prune_does_not_take_the_base_from_under_a_bake(home: Path) -> None:
    (home / "base/base1/rootfs").mkdir(parents=True)
    with operation.lock(paths.images(), alone=True), pytest.raises(operation.Busy):
        image_cache.prune()
    assert (home / "base/base1/rootfs").is_dir()


# --- what the machine must be ---

Check = Callable[..., str]


@pytest.fixture
def wanted(good: dict[str, str]) -> Settings:
    return load("local", good)


@pytest.fixture
def check(home: Path, monkeypatch: pytest.MonkeyPatch, wanted: Settings) -> Check:
    """What the check says about a machine that is as it should be but for what the arguments say; "" is nothing."""

    def machine(
        *,
        system: str = "Linux",
        uid: int = 0,
        missing: tuple[str, ...] = (),
        cgroups: bool = True,
        controllers: tuple[str, ...] = ("cpu", "memory", "pids"),
        namespaces: str = "",
        routes: tuple[dict[str, Any], ...] = (),
        sources: bool = True,
        free_gb: float = 100,
        **keys: Any,
    ) -> str:
        (home / "cgroup" / "unified").mkdir(parents=True, exist_ok=True)
        if cgroups:
            for tree in ("unified", *controllers):
                (home / "cgroup" / tree).mkdir(exist_ok=True)
                (home / "cgroup" / tree / "cgroup.procs").touch()
        with monkeypatch.context() as patch:
            patch.setattr(platform, "system", lambda: system)
            patch.setattr(os, "geteuid", lambda: uid)
            patch.setattr(os, "cpu_count", lambda: 4)
            patch.setattr(shutil, "which", lambda tool: None if tool in missing else f"/bin/{tool}")
            patch.setattr(cgroup, "ROOT", home / "cgroup")
            patch.setattr(ids, "why_unavailable", lambda: namespaces)
            patch.setattr(system_command, "run", lambda argv: json.dumps(routes))
            patch.setattr(base_image, "sources", lambda: [Path("/etc/apt/sources.list")] if sources else [])
            patch.setattr(shutil, "disk_usage", lambda path: Disk(free_gb * 2**30))
            try:
                local.check(replace(wanted, **keys))
            except UsageError as error:
                return str(error)
        return ""

    return machine


def test_a_machine_as_it_should_be_is_fine(check: Check, home: Path) -> None:
    assert check() == ""
    assert sorted(path.name for path in home.iterdir()) == ["cgroup"], "a check makes nothing"


@pytest.mark.parametrize(
    "machine, said",
    [
        ({"system": "Darwin"}, "needs a Linux machine, and this is Darwin"),
        ({"uid": 1000}, "only root"),
        ({"missing": ("apt-get",)}, "no apt-get"),
        ({"cgroups": False}, "control groups v2"),
        ({"controllers": ("memory",)}, "this machine lacks cpu, pids"),
        ({"namespaces": "user namespaces are switched off"}, "cluster = 'local': user namespaces are switched off"),
        ({"missing": ("systemd-nspawn",)}, "apt-get install systemd-container"),
        ({"missing": ("mmdebstrap", "ip")}, "apt-get install iproute2 mmdebstrap"),
        ({"sources": False}, "no archive"),
        (
            {"free_gb": host.BAKE_GB["native"] + 1},
            f".0 GiB free, and {host.BAKE_GB['native'] + 1.5:.1f} GiB are needed",
        ),
        ({"image": IMAGE}, f"image = '{IMAGE}': must be 'bake' or a baked image; there are: none"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_the_machine_lacks_is_one_line(machine: dict[str, Any], said: str, check: Check) -> None:
    line = check(**machine)
    assert said in line and len(line.splitlines()) == 1


def test_another_system_is_told_so_before_anything_of_linux_is_read(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    def release() -> dict[str, str]:
        raise FileNotFoundError("/etc/os-release")

    monkeypatch.setattr(base_image, "release", release)
    assert "this is Darwin" in check(system="Darwin")


@pytest.mark.parametrize("offered, missing", [("cpuset cpu io memory pids", []), ("", ["cpu", "memory", "pids"])])
def test_controllers_of_a_host_with_version_2_alone(
    offered: str, missing: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.controllers").write_text(f"{offered}\n")
    monkeypatch.setattr(cgroup, "ROOT", tmp_path)
    assert cgroup.missing() == missing


SOURCES = {
    "sources.list": "# deb cdrom:[Debian]/ trixie main\n\ndeb [trusted=yes] http://deb.debian.org/debian trixie main\n",
    "sources.list.d/0000trixie.list": "deb http://deb.debian.org/debian trixie main non-free-firmware # ours\n",
    "sources.list.d/debian.sources": "Types: deb\n# a copy\nURIs: http://deb.debian.org/debian\n"
    "Suites: trixie trixie-updates\nComponents:\n main\n",
    "sources.list.d/security.sources": "Types: deb deb-src\nURIs: http://deb.debian.org/debian-security\n"
    "Suites: trixie-security\nComponents: main\n",
}
NO_SOURCES = {
    "sources.list": "# deb http://deb.debian.org/debian trixie main\n",
    "sources.list.d/source.list": "deb-src http://deb.debian.org/debian trixie main\n",
    "sources.list.d/docker.list": "deb [arch=amd64] https://download.docker.com/linux/debian trixie stable\n",
    "sources.list.d/sdk.list": "deb https://packages.cloud.google.com/apt cloud-sdk-trixie main\n",
    "sources.list.d/node.sources": "Types: deb\nURIs: https://deb.nodesource.com/node\nSuites: nodistro\n"
    "Components: main\n\nTypes: deb-src\nSuites: trixie\nComponents: main\n",
    "sources.list.d/debian.sources.bak": SOURCES["sources.list.d/debian.sources"],
}


@pytest.mark.parametrize("files, found", [(SOURCES, sorted(SOURCES)), (NO_SOURCES, [])], ids=["own", "others"])
def test_the_archive_is_found_whatever_its_file_is_called(
    files: dict[str, str], found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sources.list.d").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(base_image, "APT", tmp_path)
    monkeypatch.setattr(base_image, "release", lambda: {"VERSION_CODENAME": "trixie"})
    assert [str(path.relative_to(tmp_path)) for path in base_image.sources()] == found


def test_a_baked_image_needs_neither_the_tools_nor_the_room_of_a_bake(check: Check, home: Path) -> None:
    bake(home, IMAGE)
    assert check(image=IMAGE, missing=("mmdebstrap",), sources=False, free_gb=1.5) == ""
    assert "1.4 GiB free, and 1.5 GiB are needed" in check(image=IMAGE, free_gb=1.4)


def test_more_cpus_than_there_are_name_the_key(check: Check, wanted: Settings) -> None:
    assert check(local=replace(wanted.local, cpus=4)) == ""
    assert check(local=replace(wanted.local, cpus=5)).startswith("cpus = 5: must be a whole number from 1 to 4")


@pytest.mark.parametrize("dst", ["10.77.0.0/24", "10.77.0.0/16", "10.0.0.0/8", "10.77.0.128/25", "10.77.0.9"])
def test_a_network_that_the_machine_has_a_route_to_is_refused(dst: str, check: Check) -> None:
    line = check(routes=({"dst": "default", "dev": "eth0"}, {"dst": dst, "dev": "docker0"}))
    assert line.startswith("cidr = '10.77.0.0/24': must be a network that") and f"{dst} on docker0" in line
    assert "a route without device" in check(routes=({"dst": dst, "type": "blackhole"},))


@pytest.mark.parametrize(
    "route",
    [
        {"dst": "default", "dev": "eth0"},
        {"dst": "0.0.0.0/1", "dev": "tun0"},
        {"dst": "128.0.0.0/1", "dev": "tun0"},
        {"dst": "10.78.0.0/24", "dev": "docker0"},
        {"dst": "10.77.0.0/24", "dev": network.bridge_name("local")},
    ],
    ids=str,
)
def test_other_networks_and_its_own_bridge_are_not_in_the_way(route: dict[str, str], check: Check) -> None:
    assert check(routes=(route,)) == ""


@given(
    ours=st.tuples(st.integers(0, 255), st.integers(8, 28)),
    other=st.tuples(st.integers(0, 255), st.integers(8, 32)),
)
def test_any_overlap_is_found(ours: tuple[int, int], other: tuple[int, int], good: dict[str, str]) -> None:
    one, two = (IPv4Network((10 << 24 | part << 16, length), strict=False) for part, length in (ours, other))
    wanted = load("local", {**good, "nodes": "1", "cidr": str(one)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system_command, "run", lambda argv: json.dumps([{"dst": str(two), "dev": "x"}]))
        overlap = two[0] in one or one[0] in two
        try:
            host._check_routes(wanted)
        except UsageError:
            assert overlap
        else:
            assert not overlap


@pytest.mark.parametrize("value", ["relative/path", "/a:b", "/a,b", "/etc/passwd", ""])
def test_a_home_that_cannot_be_one_is_refused(value: str, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_HOME", value)
    assert check().startswith("TRAINYARD_HOME = ")


def test_the_disk_is_that_of_the_nearest_directory_there_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def usage(path: Path) -> Disk:
        asked.append(path)
        return Disk(0)

    monkeypatch.setenv("TRAINYARD_HOME", str(home / "not" / "yet"))
    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(UsageError, match=r"0\.0 GiB free, and 0\.5 GiB are needed"):
        host._check_disk(0, 1)
    assert asked == [home]


# --- commands and locks ---


@pytest.mark.parametrize(
    "argv, said",
    [
        (["no-such-command"], "no-such-command: command not found"),
        (["sh", "-c", "echo 1; echo 2; echo 3; echo 4 >&2; exit 3"], "exit code 3: 4"),
        (["false"], "exit code 1: it printed nothing"),
        (["sleep", "60"], "sleep 60: no end within 0 s"),
    ],
)
def test_a_failing_command_says_which_and_why(argv: list[str], said: str) -> None:
    with pytest.raises(system_command.CommandError) as caught:
        system_command.run(argv, timeout=0.3 if argv[0] == "sleep" else 30)
    assert said in str(caught.value)


def test_a_watched_command_ends_when_nobody_wants_it(tmp_path: Path) -> None:
    def check() -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip():
            raise operation.Cancelled("interrupted")

    with pytest.raises(operation.Cancelled):
        system_command.run_watched(
            ["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/pid; wait"], [], tmp_path, timeout=60, check=check
        )
    child = Path("/proc") / (tmp_path / "pid").read_text().strip()
    deadline = time.monotonic() + 5  # it has its signal, and a busy machine may take a moment to end it
    while child.exists() and "Z" not in (child / "stat").read_text():
        assert time.monotonic() < deadline, "nor do its children go on"
        time.sleep(0.01)


def _hold(directory: Path, alone: bool, held: Any, done: Any) -> None:
    with operation.lock(directory, alone=alone):
        held.set()
        done.wait(60)


@pytest.mark.parametrize("alone", [True, False])
def test_a_lock_keeps_others_out_and_dies_with_its_holder(alone: bool, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    held, done = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path / "lock", alone, held, done))
    process.start()
    try:
        assert held.wait(30)
        with pytest.raises(operation.Busy) as caught, operation.lock(tmp_path / "lock", alone=not alone, timeout=0.1):
            pass
        assert caught.value.holder == process.pid
        if not alone:
            with operation.lock(tmp_path / "lock", timeout=5):
                pass
    finally:
        process.kill()
        process.join(30)
    with operation.lock(tmp_path / "lock", alone=True, timeout=5):
        pass


def test_a_lock_of_a_directory_that_was_removed_is_taken_on_the_new_one(tmp_path: Path) -> None:
    with operation.lock(tmp_path / "lock", alone=True):
        (tmp_path / "lock").rmdir()
        with operation.lock(tmp_path / "lock", alone=True, timeout=5):
            assert (tmp_path / "lock").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_what_a_killed_nspawn_has_mounted_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd 257 exports a machine's sockets in a read-only mount of its own: to remove the folder was an OSError."""
    monkeypatch.setattr(nspawn, "NSPAWN_RUN", tmp_path)
    export = tmp_path / "unix-export" / "lab-node1"
    export.mkdir(parents=True)
    system_command.run(["mount", "-t", "tmpfs", "-o", "ro,size=64k", "none", str(export)])
    try:
        nspawn.Machine("lab", "node1", tmp_path / "nodes" / "node1").stop()
        assert not export.exists()
    finally:
        if os.path.ismount(export):
            system_command.run(["umount", str(export)])
