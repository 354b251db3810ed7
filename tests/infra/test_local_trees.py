"""infra.clouds.local.trees and who calls it: what a machine's users have nested goes, and nothing else does."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import deep_tree
import pytest

from infra.clouds.local import (
    bake,
    cgroup,
    firewall,
    ids,
    image,
    network,
    orphans,
    paths,
    rootfs,
    system_command,
    trees,
)
from infra.clouds.local.kubernetes import folder as kubernetes_folder
from infra.clouds.local.nspawn import NspawnMachine
from infra.clouds.local.slurm import folder as slurm_folder
from infra.clouds.local.slurm.folder import SlurmProvider
from infra.errors import OperationError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="giving files to others needs root")

STACK = f"trees-{os.getpid()}"
USER = ids.FIRST + 1000


@pytest.fixture
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of this host's to which the links of the machines lead; it must stay as it is."""
    folder = tmp_path_factory.mktemp("host")
    (folder / "file").write_text("ours")
    yield folder
    assert (folder / "file").read_text() == "ours" and (folder / "file").stat().st_uid == 0


@pytest.fixture
def machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NspawnMachine]:
    """A machine that has ended, with its files."""
    monkeypatch.setattr(network, "links", lambda: [])
    monkeypatch.setattr(firewall, "is_open", lambda link: False)
    machine = NspawnMachine(STACK, "node1", paths.node(STACK, "node1"))
    for part in ("upper", "work/work", "root"):
        (machine.directory / part).mkdir(parents=True)
    os.chown(machine.directory / "upper", ids.FIRST, ids.FIRST)
    machine.spec.write_text("{}")
    machine.console.write_text("its console")
    yield machine
    for group in cgroup.groups(STACK):
        cgroup.remove(STACK)
        assert not group.exists()


@pytest.fixture
def nothing_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal with the machine's rights alone, which ends at a folder of this host's."""
    monkeypatch.setattr(trees, "_HAND_OVER", "exit 0")


def machines_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    os.chown(path, ids.FIRST, ids.FIRST)
    return path


def test_a_machine_goes_with_what_its_users_have_nested(machine: NspawnMachine, secrets: Path) -> None:
    upper = machine.directory / "upper"
    deep_tree.plant(upper, owner=USER, outside=secrets)
    closed = machines_folder(upper / "closed")
    (closed / "file").touch()
    closed.chmod(0)
    sticky = machines_folder(upper / "sticky")
    os.mknod(sticky / "removed", stat.S_IFCHR, os.makedev(0, 0))  # as overlayfs marks a removed file: the host root's
    os.chown(sticky, USER, USER)
    sticky.chmod(0o1777)
    machine.remove()
    assert not machine.directory.exists() and not machine.group.exists()


@pytest.mark.usefixtures("nothing_is_handed_over")
def test_a_machines_files_are_removed_with_its_own_rights(machine: NspawnMachine) -> None:
    """A file of this host's that somehow is in a machine's folder is not the machine's to remove."""
    strange = machine.directory / "upper" / "strange"
    (strange / "below").mkdir(parents=True)
    deep_tree.plant(machine.directory / "upper", owner=USER)
    with pytest.raises(OperationError, match="strange") as error:
        machine.remove()
    assert (strange / "below").exists() and len(str(error.value)) < 2000


def test_what_this_hosts_root_has_put_there_goes_too(machine: NspawnMachine, secrets: Path) -> None:
    """As somebody does who copies text for the jobs into a shared folder: the machine's root may not remove it."""
    text = machine.directory / "upper/c4/en"
    text.mkdir(parents=True)
    (text / "part.gz").write_text("of the host's")
    (text / "link").symlink_to(secrets)
    os.chown(machine.directory / "upper/c4/en/part.gz", USER, USER)
    machine.remove()
    assert not machine.directory.exists()


def test_another_file_system_in_it_is_left_alone(machine: NspawnMachine) -> None:
    place = machines_folder(machine.directory / "upper" / "place")
    owner = f"uid={ids.FIRST},gid={ids.FIRST}"
    system_command.run(["mount", "-t", "tmpfs", "-o", f"size=64k,{owner}", "none", str(place)])
    try:
        (place / "file").touch()
        os.chown(place / "file", USER, USER)
        with pytest.raises(OperationError, match="Device or resource busy"):
            machine.remove()
        assert (place / "file").exists()
    finally:
        system_command.run(["umount", str(place)])
    machine.remove()
    assert not machine.directory.exists()


@pytest.mark.usefixtures("nothing_is_handed_over")
def test_what_a_failed_removal_leaves_is_seen_and_swept_though_the_state_has_it(machine: NspawnMachine) -> None:
    strange = machine.directory / "upper" / "strange"
    (strange / "below").mkdir(parents=True)
    whole = [(live.kind, live.owner) for live in orphans.find(STACK)]
    assert whole == [("directory", "node1")], "of a dead machine that is whole the state knows"
    with pytest.raises(OperationError):
        machine.remove()
    left = [live for live in orphans.find(STACK) if not live.is_in(["node1"])]
    assert [(live.kind, live.what, live.owner) for live in left] == [
        ("directory", str(machine.directory), "remains of node1")
    ]
    with pytest.raises(OperationError):
        orphans.sweep(STACK, known=["node1"])
    (strange / "below").rmdir()
    strange.rmdir()
    assert [live.what for live in orphans.sweep(STACK, known=["node1"])] == [str(machine.directory)]
    assert not paths.stack(STACK).exists() and orphans.find(STACK) == []


@pytest.mark.usefixtures("nothing_is_handed_over")
@pytest.mark.parametrize("module", [slurm_folder, kubernetes_folder], ids=["slurm", "kubernetes"])
def test_a_shared_folder_goes_with_what_jobs_have_nested_and_its_remains_are_seen(
    module: ModuleType, machine: NspawnMachine, secrets: Path
) -> None:
    top = module.path(STACK)
    shared = machines_folder(top / "fsx")
    shared.chmod(0o1777)
    (top / "pki").mkdir(mode=0o700)
    (top / "pki" / "ca.key").touch(mode=0o600)
    (machines_folder(top / "etc") / "slurm.conf").touch()
    (top / "admin.kubeconfig").touch()
    assert module.NAME in {live.owner for live in orphans.find(STACK)}
    (shared / "of-the-host" / "below").mkdir(parents=True)
    with pytest.raises(OperationError, match="of-the-host"):
        module.remove(STACK)
    assert f"remains of {module.NAME}" in {live.owner for live in orphans.find(STACK)}
    (shared / "of-the-host" / "below").rmdir()
    (shared / "of-the-host").rmdir()
    deep_tree.plant(shared, owner=USER, outside=secrets)
    assert str(top) in {live.what for live in orphans.sweep(STACK, known=["node1", module.NAME])}
    assert not top.exists()


def test_a_removal_that_outlived_its_caller_ends_before_the_folder_is_made_again(machine: NspawnMachine) -> None:
    """Or it would remove what is new."""
    joins = cgroup.make(STACK, slurm_folder.NAME)
    with subprocess.Popen(system_command.in_groups(["sleep", "60"], joins)) as left:
        while left.pid not in cgroup.processes(STACK, slurm_folder.NAME):
            pass
        SlurmProvider().create({"stack": STACK, "slurm.conf": "", **slurm_folder.SCRIPTS})
        assert left.wait(5) == -9
    slurm_folder.remove(STACK)


def test_an_image_goes_with_what_its_bake_has_nested(machine: NspawnMachine, secrets: Path) -> None:
    target = paths.images() / "image1"
    deep_tree.plant(machines_folder(target / "layer"), owner=USER, outside=secrets)
    bake.store(machine, "image1", {"base": "none"})  # over what a killed bake has left
    machines_folder(target / "layer" / "opt")
    image.remove("image1")
    assert not target.exists()


@pytest.mark.parametrize("owner", [0, USER])
def test_what_is_nested_in_a_root_goes_by_its_pattern(owner: int, home: Path, secrets: Path) -> None:
    folder = home / "root" / "tmp" / "folder"
    folder.mkdir(parents=True)
    os.chown(folder, owner, owner)
    os.chown(folder.parent, ids.FIRST, ids.FIRST)
    deep_tree.plant(folder, owner=owner, outside=secrets)
    rootfs.remove(home / "root", "tmp/*")
    assert list((home / "root" / "tmp").iterdir()) == []


def test_control_groups_may_be_nested_as_deep(machine: NspawnMachine) -> None:
    """A machine's root makes groups below its own."""
    cgroup.make(STACK, "node1")
    handle = os.open(cgroup.unified(STACK, "node1"), os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(deep_tree.DEPTH):
        os.mkdir(deep_tree.NAME, dir_fd=handle)
        below = os.open(deep_tree.NAME, os.O_RDONLY | os.O_DIRECTORY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(handle)
    assert cgroup.processes(STACK) == []
    machine.remove()
    assert not machine.group.exists()


def test_a_folder_that_is_missing_is_no_error(home: Path) -> None:
    trees.remove(home / "missing")
