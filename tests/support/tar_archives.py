"""Tar archives as a head may send them, good and hostile."""

from __future__ import annotations

import io
import stat
import tarfile
from pathlib import Path


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


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, found without following a link; anything else fails."""
    found = {}
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode), path
        if stat.S_ISREG(mode):
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


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
