"""`fab fetch` from a head that is not believed: its list, its archive, and what is written here."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sshd
from hypothesis import given, settings
from hypothesis import strategies as st
from invoke.context import Context
from invoke.exceptions import Exit

from fabfile import download
from fabfile.backends.base import Refused
from fabfile.backends.ssh.untar import Stream, extract
from fabfile.remote.command import Result
from fabfile.remote.filenames import refusal
from fabfile.verbs.results import fetch
from infra.inventory import to_json

GIB = 1 << 30


def member(name: str, kind: bytes = tarfile.REGTYPE, **values: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    for key, value in values.items():
        setattr(made, key, value)
    return made


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """As GNU tar writes it. A member's own size stays when it has one, whatever its content is."""
    made = io.BytesIO()
    for info, content in members:
        info.size = info.size or len(content)
        made.write(info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
        made.write(content + bytes(-len(content) % 512))
    return made.getvalue() + bytes(10240)


def files(contents: dict[str, bytes]) -> bytes:
    return archive(*((member(f"./{name}"), content) for name, content in contents.items()))


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


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, found without following a link; anything else fails."""
    found = {}
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode), path
        if stat.S_ISREG(mode):
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


# --- the archive ---------------------------------------------------------------------------------------------------


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


HOSTILE: dict[str, tuple[bytes, str]] = {
    "not asked for": (files({"b": b"1"}), "'b' was not asked for"),
    "above": (files({"../a": b"1"}), "'../a' was not asked for"),
    "absolute": (archive((member("/etc/cron.d/a"), b"1")), "'/etc/cron.d/a' was not asked for"),
    "twice": (archive((member("a"), b"1"), (member("a"), b"2")), "'a' is sent twice"),
    "symbolic link": (archive((member("a", tarfile.SYMTYPE, linkname="/etc"), b"")), "'a' is a symbolic link"),
    "hard link": (archive((member("a", tarfile.LNKTYPE, linkname="/etc/passwd"), b"")), "'a' is a hard link"),
    "device": (archive((member("a", tarfile.BLKTYPE), b"")), "'a' is a device"),
    "fifo": (archive((member("a", tarfile.FIFOTYPE), b"")), "'a' is a FIFO"),
    "folder": (archive((member("a", tarfile.DIRTYPE), b"")), "'a/' is a folder"),
    "sparse": (archive((member("a", tarfile.GNUTYPE_SPARSE), b"")), "'a' is a sparse file"),
    "pax header": (archive((member("a", tarfile.XHDTYPE, size=1 << 40), b"")), "'a' is of the unknown kind b'x'"),
    "huge": (archive((member("a", size=1 << 40), b"")), "'a' has 1099511627776 bytes, more than"),
    "long name without end": (
        archive((member("././@LongLink", tarfile.GNUTYPE_LONGNAME, size=1 << 40), b"")),
        "a name of 1099511627776 bytes",
    ),
    "long name": (archive((member("b" * 300), b"1")), "was not asked for"),
    "negative": (files({"a": b"1"}).replace(b"00000000001\x00", b"\xff" * 12, 1), "wrong checksum"),
    "not an archive": (b"<html>" * 200, "no archive"),
    "bytes after the end": (files({"a": b"1"}) + b"x" * (2 << 20), "more is sent after the archive's end"),
}


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


# --- a head ----------------------------------------------------------------------------------------------------------


class HostileHead:
    """A real sshd that answers the questions of `fab fetch` with what a test wants."""

    def __init__(self, folder: Path, yard: sshd.Yard) -> None:
        self.folder = folder
        script = folder / "answer"
        script.write_text(f"""#!/bin/sh
case "$SSH_ORIGINAL_COMMAND" in
    *"find ."*) cat {folder}/list ;;
    *"tar --format"*) cat {folder}/tar ;;
    *"launch jobs"*) cat {folder}/jobs ;;
    *install*) head -n 1 >/dev/null; echo '{{"have": true}}'; echo '{{"folder": "/code", "busy": "", "problem": ""}}' ;;
esac
""")
        script.chmod(0o755)
        job = {"id": "demo-1", "state": "FAILED", "nodes": ["node1"], "created": 5.0, "started": 5.0}
        (folder / "jobs").write_text(json.dumps([job]))
        server = yard.start("127.0.0.2", sshd.free_port("127.0.0.2"), extra=f"ForceCommand {script}")
        self.inventory = folder / "nodes.json"
        self.inventory.write_text(to_json(yard.cluster(server.node("node1"))))

    def has(self, listed: dict[str, int], tar: bytes, extra: str = "") -> None:
        records = [f"f {size} 1000.5 {name}\0" for name, size in listed.items()]
        (self.folder / "list").write_bytes(("".join(records) + extra).encode(errors="surrogateescape"))
        (self.folder / "tar").write_bytes(tar)

    def fetch(self, target: Path) -> None:
        fetch.body(Context(), "demo-1", to=str(target), inventory=str(self.inventory))


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostileHead]:
    sshd.require()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "yard").mkdir()
    yard = sshd.Yard(tmp_path / "yard", [])
    sshd.keygen(yard.identity)
    yield HostileHead(tmp_path / "yard", yard)
    yard.stop()


STATE = json.dumps({"id": "demo-1", "started": 5.0}).encode()


def test_a_job_is_fetched_and_fetched_again(
    head: HostileHead, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "got"
    first = {"state.json": STATE, "log": b"one\n", "checkpoints/step-000001/model": b"m" * 2000}
    head.has({name: len(content) for name, content in first.items()}, files(first))
    head.fetch(target)
    assert tree(target) == first
    (target / "notes").write_text("mine")
    second = {**first, "log": b"one\ntwo\n", "checkpoints/step-000002/model": b"n"}
    head.has({name: len(content) for name, content in second.items()}, files(second))
    head.fetch(target)
    assert tree(target) == {**second, "notes": b"mine"}
    assert "2 of 4 files new or changed" in capsys.readouterr().out


def test_a_large_file_that_is_here_is_not_asked_for_again(head: HostileHead, tmp_path: Path) -> None:
    target = tmp_path / "got"
    large = b"m" * (2 << 20)
    head.has(
        {"state.json": len(STATE), "model": len(large)},
        archive((member("./state.json"), STATE), (member("./model", mtime=1000), large)),
    )
    head.fetch(target)
    head.has({"state.json": len(STATE), "model": len(large)}, files({"state.json": STATE}))
    head.fetch(target)
    assert tree(target) == {"state.json": STATE, "model": large}


def test_a_file_that_went_away_meanwhile_is_named(
    head: HostileHead, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head.has({"state.json": len(STATE), "gone": 5}, files({"state.json": STATE}))
    head.fetch(tmp_path / "got")
    assert "gone: was gone before it was read" in capsys.readouterr().out


LISTS: dict[str, tuple[dict[str, int], str, str]] = {
    "above": ({"../../.bashrc": 1}, "", "'../../.bashrc' has an empty part, '.' or '..'"),
    "absolute": ({"/etc/profile": 1}, "", "'/etc/profile' is an absolute path"),
    "escape sequence": ({"\x1b[2Jx": 1}, "", "'\\x1b[2Jx' has a character that cannot be seen"),
    "link": ({}, "l 4 1.0 checkpoints\0", "'checkpoints' is neither a file nor a folder"),
    "file and folder": ({"a": 1, "a/b": 1}, "", "'a' is listed as a file and as a folder"),
    "twice": ({"a": 1}, "f 1 1.0 a\0", "'a' is listed twice"),
    "no size": ({}, "f -1 1.0 a\0", "'a' is listed with the size '-1'"),
    "more than the disk": ({"a": 1 << 60}, "", "has room for"),
    "many": ({str(number): 0 for number in range(100_001)}, "", "it has 100001 files"),
}


@pytest.mark.parametrize("what", LISTS)
def test_a_hostile_list_is_refused_before_a_file_is_asked_for(what: str, head: HostileHead, tmp_path: Path) -> None:
    listed, extra, why = LISTS[what]
    head.has(listed, b"never read", extra)
    with pytest.raises(Exit) as end:
        head.fetch(tmp_path / "to" / "got")
    assert end.value.code == 1 and why in str(end.value) and "\n" not in str(end.value)
    assert not (tmp_path / "to" / "got").exists() and not list(tmp_path.glob("to/*"))


@pytest.mark.parametrize("what", HOSTILE)
def test_nothing_is_kept_of_a_hostile_archive(what: str, head: HostileHead, tmp_path: Path) -> None:
    data, why = HOSTILE[what]
    head.has({"a": 1}, data)
    with pytest.raises(Exit) as end:
        head.fetch(tmp_path / "to" / "got")
    assert (
        end.value.code == 1 and why in str(end.value) and str(end.value).startswith("node1: demo-1 was not fetched: ")
    )
    assert not list(tmp_path.glob("to/*"))


def test_a_file_that_grows_without_end_is_stopped(
    head: HostileHead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_GROWTH", 1000)
    head.has({"log": 1000}, archive((member("./log", size=2001), b"x" * 2001)))
    with pytest.raises(Exit, match="'log' has 2001 bytes, more than was announced"):
        head.fetch(tmp_path / "got")


def another_run(target: Path) -> None:
    (target / "state.json").write_text(json.dumps({"id": "demo-1", "started": 4.0}))


def a_link(target: Path) -> None:
    (target / "state.json").write_bytes(STATE)
    (target / "a").symlink_to(target.parent / "outside")


@pytest.mark.parametrize(
    ("make", "code", "why"),
    [
        (another_run, 2, "has something else than demo-1 in it; name another folder with --to"),
        (lambda target: (target / "x").touch(), 2, "has something else than demo-1 in it"),
        (a_link, 1, "got/a is in the way: it is no plain file"),
    ],
)
def test_a_folder_with_something_else_is_left_alone(
    make: Callable[[Path], None], code: int, why: str, head: HostileHead, tmp_path: Path
) -> None:
    target = tmp_path / "got"
    target.mkdir()
    (tmp_path / "outside").write_text("mine")
    make(target)
    before = sorted(path.name for path in target.iterdir())
    head.has({"a": 1}, files({"a": b"x"}))
    with pytest.raises(Exit) as end:
        head.fetch(target)
    assert end.value.code == code and why in str(end.value)
    assert sorted(path.name for path in target.iterdir()) == before and (tmp_path / "outside").read_text() == "mine"


def test_to_a_file_is_one_line_before_a_connection(head: HostileHead, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for target in (file, file / "below"):
        with pytest.raises(Exit, match=r"--to .*/file is a file; name a folder") as end:
            head.fetch(target)
        assert end.value.code == 2
