"""The mirror's metrics: one gzip file of all lines, for which only what was added is compressed."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.store.packed_lines import PackedLines

LINE = b'{"step": %d, "loss": 2.5, "lr": 0.001, "rank_seconds": [0.25, 0.25]}\n'


@given(st.lists(st.tuples(st.binary(max_size=300), st.integers(0, 1) | st.just(1000))))
def test_whatever_becomes_of_the_file_the_last_one_is_whole(changes: list[tuple[bytes, int]]) -> None:
    """It grows, or is cut back first, as when a run goes back to its checkpoint."""
    packed, lines = PackedLines(), b""
    for added, cut in changes:
        lines = lines[: len(lines) - min(cut, len(lines))] + added
        assert gzip.decompress(packed.of(lines)) == lines


def test_only_what_was_added_is_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    compressed: list[int] = []
    begin = zlib.compressobj

    class Counted:
        def __init__(self, level: int, *, wbits: int) -> None:
            self._real = begin(level, wbits=wbits)

        def compress(self, data: memoryview) -> bytes:
            compressed.append(len(data))
            return self._real.compress(data)

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

    monkeypatch.setattr(zlib, "compressobj", Counted)
    packed, lines = PackedLines(), b""
    for checkpoint in range(200):
        lines += b"".join(LINE % (checkpoint * 10 + step) for step in range(10))
        sent = packed.of(lines)
    assert sum(compressed) == len(lines) and gzip.decompress(sent) == lines
    assert len(sent) < 2 * len(gzip.compress(lines, 3)), "small pieces share what came before them"
