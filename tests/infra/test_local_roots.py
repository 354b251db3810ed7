"""infra.clouds.local and a machine's root file system: the ids it belongs to, and the links in it."""

from __future__ import annotations

import importlib.util
import os
import struct
import sys
from pathlib import Path

import pytest

from infra.clouds.local import ids, paths, rootfs
from infra.clouds.local.nspawn import NspawnMachine
from infra.errors import OperationError

ROOT = Path(__file__).resolve().parents[2]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="giving files to others needs root")
CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")  # cap_net_raw=ep, as dpkg writes it for ping


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root file system, beside a folder of this machine's that it may not reach."""
    (tmp_path / "host" / "secrets").mkdir(parents=True)
    (tmp_path / "host" / "secrets" / "file").write_text("ours")
    (tmp_path / "root" / "etc" / "ssh").mkdir(parents=True)
    return tmp_path / "root"


def proc(folder: Path, *, users: str = "0 0 4294967295", groups: str = "0 0 4294967295", most: str = "9999") -> Path:
    (folder / "self").mkdir()
    (folder / "self" / "uid_map").write_text(f"         {users}\n")
    (folder / "self" / "gid_map").write_text(f"         {groups}\n")
    (folder / "sys" / "user").mkdir(parents=True)
    (folder / "sys" / "user" / "max_user_namespaces").write_text(f"{most}\n")
    return folder


# --- the ids ---


@pytest.mark.parametrize(
    "have, expected",
    [
        ({}, ""),
        ({"users": "0 0 1048576", "groups": "0 0 1048576"}, ""),
        ({"users": "0 524288 65536"}, "needs the user ids 524288 to 589823 for its nodes, and there are 0 to 65535; "),
        (
            {"groups": "0 524288 589823"},
            "needs the group ids 524288 to 589823 for its nodes, and there are 0 to 589822",
        ),
        ({"most": "0"}, "user namespaces are switched off; allow them: sysctl user.max_user_namespaces=1000"),
    ],
    ids=str,
)
def test_a_machine_without_the_ids_says_so_in_one_line(have: dict[str, str], expected: str, tmp_path: Path) -> None:
    line = ids.why_unavailable(proc(tmp_path, **have))
    assert line.startswith(expected) and bool(line) == bool(expected) and len(line.splitlines()) <= 1


def test_a_kernel_without_user_namespaces_says_so(tmp_path: Path) -> None:
    assert ids.why_unavailable(tmp_path) == "the kernel has no user namespaces"


@as_root
def test_a_shifted_base_keeps_rights_links_and_capabilities(root: Path) -> None:
    program, link, other = root / "etc/sudo", root / "etc/link", root / "etc/other-name"
    program.write_text("x")
    os.chown(program, 0, 42)
    program.chmod(0o4755)
    os.setxattr(program, "security.capability", CAPABILITY)
    link.symlink_to(root.parent / "host" / "secrets" / "file")
    other.hardlink_to(program)
    for _ in range(2):  # the second time there is nothing to do
        ids.shift(root)
        status = program.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (ids.FIRST, ids.FIRST + 42, 0o4755)
        shifted = os.getxattr(program, "security.capability")
        assert shifted == b"\x01\x00\x00\x03" + CAPABILITY[4:] + struct.pack("<I", ids.FIRST)
        assert link.lstat().st_uid == ids.FIRST
    assert (root.parent / "host" / "secrets" / "file").stat().st_uid == 0, "what a link shows is not the root's"
    assert {path.lstat().st_uid for path in (root, *root.rglob("*"))} == {ids.FIRST}


@as_root
def test_an_owner_that_no_machine_can_have_is_refused(root: Path) -> None:
    (root / "etc/file").write_text("")
    os.chown(root / "etc/file", 70000, 0)
    with pytest.raises(OperationError, match="etc/file: owner 70000:0"):
        ids.shift(root)


@as_root
def test_everything_is_below_folders_of_roots_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path))
    tmp_path.chmod(0o755)
    (tmp_path / "images").mkdir(mode=0o755)  # as an older version made it
    paths.close()
    assert {*paths.PARTS} == {folder.name for folder in tmp_path.iterdir()}
    for folder in (tmp_path, *tmp_path.iterdir()):
        assert folder.stat().st_mode & 0o777 == 0o700, folder


def test_a_named_folder_with_files_of_others_stays_open_and_ours_in_it_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path))
    tmp_path.chmod(0o755)
    (tmp_path / "lost+found").mkdir(mode=0o755)
    paths.close()
    assert [tmp_path.stat().st_mode & 0o777, (tmp_path / "lost+found").stat().st_mode & 0o777] == [0o755, 0o755]
    assert {(tmp_path / part).stat().st_mode & 0o777 for part in paths.PARTS} == {0o700}


def test_the_roots_of_bare_machines_are_made_in_a_closed_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not shifted: what is set-id in them has this machine's own root."""
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path))
    spec = importlib.util.spec_from_file_location("bare_machine", ROOT / "tests/bare/machine.py")
    assert spec and spec.loader
    bare = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bare_machine", bare)
    spec.loader.exec_module(bare)
    modes = []

    class Made(Exception):
        pass

    def make(*_: object, **__: object) -> None:
        modes.append(bare.HOME.stat().st_mode & 0o777)
        raise Made

    monkeypatch.setattr(bare.system_command, "run_watched", make)
    monkeypatch.setattr(bare.cgroup, "make", lambda *_: [])
    for _ in ("none there", "one of an older version, open"):
        with pytest.raises(Made):
            bare.BareMachine("debian12").make_root()
        bare.HOME.chmod(0o755)
    (bare.HOME / "roots/debian12").mkdir()
    bare.BareMachine("debian12").make_root()
    assert [*modes, bare.HOME.stat().st_mode & 0o777] == [0o700] * 3


# --- links that a machine's root has planted ---


def test_a_link_is_not_read(root: Path) -> None:
    (root / "etc/ssh/key.pub").symlink_to(root.parent / "host" / "secrets" / "file")
    (root / "var").symlink_to(root.parent / "host")
    for name in ("etc/ssh/key.pub", "var/secrets/file"):
        with pytest.raises(OperationError, match="not a "):
            rootfs.read(root, name)


def test_what_is_no_file_is_not_waited_for(root: Path) -> None:
    os.mkfifo(root / "etc/pipe")
    with (root / "etc/huge").open("wb") as file:
        file.truncate(rootfs.MOST + 1)
    for name in ("etc/pipe", "etc/huge", "etc/ssh"):
        with pytest.raises(OperationError, match="not a plain file"):
            rootfs.read(root, name)
    with pytest.raises(FileNotFoundError):
        rootfs.read(root, "etc/none/file")


@as_root
def test_a_link_is_replaced_and_not_written_through(root: Path) -> None:
    secret = root.parent / "host" / "secrets" / "file"
    (root / "etc/hostname").symlink_to(secret)
    rootfs.write(root, "etc/hostname", "node1\n", mode=0o600)
    rootfs.write(root, "etc/new/folder/file", "text")
    assert secret.read_text() == "ours" and rootfs.read(root, "etc/hostname") == "node1\n"
    status = (root / "etc/hostname").lstat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (ids.FIRST, ids.FIRST, 0o600)
    assert (root / "etc/new/folder").stat().st_uid == ids.FIRST
    (root / "etc/ssh").rmdir()
    (root / "etc/ssh").symlink_to(secret.parent)
    with pytest.raises(OperationError, match="etc/ssh: not a folder"):
        rootfs.write(root, "etc/ssh/file", "theirs")
    assert secret.read_text() == "ours" and not list(root.glob("etc/.*"))


def test_nothing_is_removed_through_a_link(root: Path) -> None:
    secrets = root.parent / "host" / "secrets"
    (root / "tmp").mkdir()
    (root / "tmp/link").symlink_to(secrets)
    (root / "tmp/.hidden").mkdir()
    (root / "home/user/.ssh").mkdir(parents=True)
    (root / "home/file").write_text("")
    rootfs.remove(root, "tmp/*")
    rootfs.remove(root, "home/*/.ssh")
    rootfs.remove(root, "none/*")
    assert not [*(root / "tmp").iterdir(), *(root / "home/user").iterdir()]
    (root / "var").symlink_to(secrets.parent)
    with pytest.raises(OperationError, match="var: is a link"):
        rootfs.remove(root, "var/secrets/*")
    assert (secrets / "file").read_text() == "ours"


def test_a_console_is_shown_without_its_control_characters(tmp_path: Path) -> None:
    machine = NspawnMachine("stack", "node1", tmp_path)
    assert machine.console_tail(5) == ""
    machine.console.write_bytes(b"x" * 200_000 + b"\n\x1b]0;owned\x07\x1b[2Jlast\x9b\xff line\r\n\n")
    tail = machine.console_tail(1)
    assert tail.endswith("line") and "last" in tail and all(character.isprintable() for character in tail)
