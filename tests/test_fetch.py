"""What the head sends of a job, as the file that `fab fetch` unpacks."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fabfile.jobs.fetch import Stream
from fabfile.remote import Result


def archive(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return made.getvalue()


def pieces(data: bytes, seed: int) -> Iterator[bytes | Result]:
    """As a network cuts it."""
    draw, at = random.Random(seed), 0
    while at < len(data):
        size = draw.choice((1, 7, 511, 512, 10_240, 70_000))
        yield data[at : at + size]
        at += size
    yield Result("node1", 1, stderr="tar: log: file changed as we read it")


@pytest.mark.parametrize("seed", range(10))
def test_an_archive_in_pieces_is_whole(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    files = {f"{number}": draw.randbytes(draw.choice((0, 1, 512, 100_000))) for number in range(20)}
    stream = Stream(pieces(archive(files), seed))
    with tarfile.open(fileobj=io.BufferedReader(stream), mode="r|") as tar:
        tar.extractall(tmp_path, filter="data")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
    assert stream.result().exited == 1


def test_a_connection_that_breaks_is_no_end() -> None:
    def broken() -> Iterator[bytes | Result]:
        yield archive({"a": b"x" * 9000})[:5000]
        raise OSError("the connection broke")

    with pytest.raises(OSError, match="broke"), tarfile.open(fileobj=Stream(broken()), mode="r|") as tar:
        for member in tar:
            tar.extractfile(member).read()  # type: ignore[union-attr]
