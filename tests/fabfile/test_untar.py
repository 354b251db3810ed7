"""The archive of a job's files: what is read, and what is refused by name."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tar_archives import HOSTILE, archive, files, member, tree

from fabfile.backends.base import Refused
from fabfile.backends.ssh.untar import Stream, extract
from fabfile.remote.command import Result
from fabfile.remote.filenames import refusal

GIB = 1 << 30


def pieces(data: bytes, seed: int = 0) -> Iterator[bytes | Result]:
    """As a network cuts it."""
    draw, at = random.Random(seed), 0
    while at < len(data):
        size = draw.choice((1, 7, 511, 512, 10_240, 70_000))
        yield data[at : at + size]
        at += size
    yield Result("node1", 1, stderr="tar: log: file changed as we read it")


def unpack(data: bytes, wanted: set[str], folder: Path, limit: int = GIB, seed: int = 0) -> dict[str, int]:
    stream = Stream(pieces(data, seed))
    done = extract(stream, wanted, folder, limit, lambda count: None)
    assert stream.result().exited == 1
    return done


@pytest.mark.parametrize("seed", range(10))
def test_an_archive_in_pieces_is_whole(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    contents = {f"a/{number}": draw.randbytes(draw.choice((0, 1, 512, 100_000))) for number in range(20)}
    contents["deep/" + "long" * 40] = b"a name that has a member of its own"
    unpack(files(contents), set(contents), tmp_path, seed=seed)
    assert tree(tmp_path) == contents


def test_what_gnu_tar_itself_writes_is_read(tmp_path: Path) -> None:
    made = tmp_path / "made"
    (made / "x" / ("y" * 120)).mkdir(parents=True)
    contents = {"run.sh": b"#!/bin/sh\n", f"x/{'y' * 120}/z.bin": os.urandom(70_001), "-T": b"a name like an option"}
    for name, content in contents.items():
        (made / name).write_bytes(content)
    (made / "run.sh").chmod(0o4777)
    os.utime(made / "run.sh", (1_000_000, 1_000_000))
    os.link(made / "run.sh", made / "again")  # without --hard-dereference the second would be a link
    contents["again"] = contents["run.sh"]
    command = "tar --format=gnu --hard-dereference --no-recursion -c -- " + " ".join(f"./{name}" for name in contents)
    data = os.popen(f"cd {made} && {command}").buffer.read()  # type: ignore[attr-defined]
    (tmp_path / "got").mkdir()
    unpack(data, set(contents), tmp_path / "got")
    assert tree(tmp_path / "got") == contents
    made_file = (tmp_path / "got" / "run.sh").stat()
    assert made_file.st_mode & 0o7777 == 0o755 and made_file.st_mtime == 1_000_000


def test_a_connection_that_breaks_is_no_end(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes | Result]:
        yield files({"a": b"x" * 9000})[:5000]
        raise OSError("the connection broke")

    with pytest.raises(OSError, match="broke"):
        extract(Stream(broken()), {"a"}, tmp_path, GIB, lambda count: None)
    with pytest.raises(EOFError, match="in the middle"):
        unpack(files({"a": b"x" * 9000})[:5000], {"a"}, tmp_path / "other")


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_is_refused_by_its_member_s_name(what: str, tmp_path: Path) -> None:
    data, why = HOSTILE[what]
    (tmp_path / "in").mkdir()
    with pytest.raises(Refused) as caught:
        unpack(data, {"a", "link/b"}, tmp_path / "in")
    assert why in str(caught.value)
    assert set(tree(tmp_path)) <= {"in/a"}


def test_links_on_this_disk_are_not_followed(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "in"
    inside.mkdir()
    outside.write_text("mine")
    (inside / "a").symlink_to(outside)
    with pytest.raises(Refused, match="'a' is on this disk the same as"):
        unpack(files({"a": b"theirs"}), {"a"}, inside)
    assert outside.read_text() == "mine"


kinds = st.sampled_from([b"0", b"\0", b"1", b"2", b"3", b"5", b"6", b"7", b"S", b"K", b"L", b"x", b"g", b"D", b"M"])


names = st.one_of(
    st.sampled_from(["a", "link", "link/b", "../out", "/tmp/out", "a/../../out", ".", "..", "", "./a", "a\0b", "a\nb"]),
    st.text(max_size=120),
)


hostile_members = st.builds(
    lambda name, kind, link, size, content: (member(name, kind, linkname=link, size=size), content),
    names,
    kinds,
    st.sampled_from(["", "/etc", "..", "../..", "a", "link"]),
    st.sampled_from([0, 0, 0, 1, 513, 1 << 33, 1 << 62]),
    st.binary(max_size=700),
)


@settings(max_examples=400)
@given(
    st.lists(hostile_members, max_size=6), st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=4)
)
def test_no_archive_writes_anything_but_plain_files_that_were_asked_for(
    members: list[tuple[tarfile.TarInfo, bytes]], flips: list[tuple[int, int]]
) -> None:
    """Whatever is in it, and whatever bytes of it are changed."""
    data = bytearray(archive(*members))
    for at, value in flips:
        data[at % len(data)] = value
    outside = Path(tempfile.mkdtemp())
    try:
        inside = outside / "in"
        inside.mkdir()
        with contextlib.suppress(Refused, EOFError):
            unpack(bytes(data), {"a", "link", "b/c"}, inside, limit=1 << 16)
        assert set(tree(outside)) <= {"in/a", "in/link", "in/b/c"}
    finally:
        shutil.rmtree(outside)


@given(st.text(max_size=40))
def test_a_name_that_is_not_refused_stays_under_its_folder(name: str) -> None:
    if not refusal(name):
        folder = Path("/some/folder")
        assert os.path.normpath(folder / name) == str(folder / name) and (folder / name).is_relative_to(folder)
        assert name
        assert not set(name) & {"\n", "\r", "\x1b", "\0", "\u202e", "\\"}


@pytest.mark.parametrize(
    "name",
    ["", "/a", "../a", "a/../b", "a//b", "a/", "./a", "a\\b", "a\nb", "a\x1b[2J", "a\u202eb", "a\udc80", "x" * 256],
)
def test_names_that_are_refused(name: str) -> None:
    assert refusal(name)
