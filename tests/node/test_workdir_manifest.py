"""The list of a working directory's files: what it is made of comes back, and nothing outside of it is named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.workdir import manifest
from node.workdir.manifest import FILE, PROGRAM, Entry


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.builds(
            Entry,
            path=st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=12).filter(
                lambda text: ".." not in text and not text.startswith("/") and text.strip("./")
            ),
            kind=st.sampled_from([FILE, PROGRAM]),
            size=st.integers(0, 1 << 50),
            content=st.binary(min_size=32, max_size=32).map(bytes.hex),
        ),
        unique_by=lambda one: one.path,
    )
)
def test_a_manifest_comes_back_as_it_was_in_any_order(entries: list[Entry]) -> None:
    data = manifest.encode(entries)
    assert set(manifest.decode(data)) == set(entries)
    assert manifest.encode(reversed(entries)) == data


@pytest.mark.parametrize(
    "row",
    [
        ["/etc/passwd", "file", 1, "0" * 64],
        ["../x", "file", 1, "0" * 64],
        ["a/../../x", "file", 1, "0" * 64],
        ["", "file", 1, "0" * 64],
        ["a", "device", 1, "0" * 64],
        ["a", "file", -1, "0" * 64],
        ["a", "file", 1, "short"],
        ["a", "link", 0, ""],
        ["a", "file"],
    ],
)
def test_a_manifest_that_names_another_place_is_none(row: list[object]) -> None:
    with pytest.raises(ValueError, match="not a manifest"):
        manifest.decode(json.dumps([row]).encode())
