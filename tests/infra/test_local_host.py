"""infra.clouds.local.host and base_image: what this machine must be for the local stack."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from baked_image import IMAGE, bake
from hypothesis import given
from hypothesis import strategies as st

from infra.clouds.local import base_image, cgroup, host, ids, network, system_command
from infra.clusters import local
from infra.config.settings import Settings, load
from infra.errors import UsageError

Disk = namedtuple("Disk", "free")


Check = Callable[..., str]


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
    "machine, expected",
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
def test_what_the_machine_lacks_is_one_line(machine: dict[str, Any], expected: str, check: Check) -> None:
    line = check(**machine)
    assert expected in line and len(line.splitlines()) == 1


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
    assert line.endswith("; for another one: fab config set cidr NETWORK --stack local")
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
