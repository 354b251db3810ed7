"""infra.user_data.image_key: what an image's name depends on."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sample_inputs import public_key
from user_data_parts import CLOUDS, IMAGE, OVERLAYS, sent

from infra import user_data
from infra.config.settings import Settings, load
from infra.errors import UsageError


@settings(max_examples=20)  # each copies bootstrap/
@given(data=st.data())
def test_an_image_s_name_changes_with_any_byte_of_the_bootstrap_but_its_comments(
    data: st.DataObject, good: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    wanted = load("local", good)
    root = tmp_path_factory.getbasetemp() / "any-byte"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(user_data.BOOTSTRAP, root)
    files = (
        p
        for p in root.rglob("*")
        if p.is_file() and p.suffix != ".pyc" and not {*CLOUDS, *OVERLAYS, user_data.CONTAINER}.intersection(p.parts)
    )
    path = data.draw(st.sampled_from(sorted(files)))
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    before = b"" if path.name == "cloud-config.yaml" else sent(path, root)
    path.write_bytes(content)
    try:
        assume(path.name == "cloud-config.yaml" or sent(path, root) != before)
    except UsageError:
        return  # a program that is none any more makes no image at all
    assert user_data.image_key(wanted, bootstrap=root) != user_data.image_key(wanted)


def test_an_image_s_name_changes_with_files_that_come_go_or_move(wanted: Settings, bootstrap: Path) -> None:
    keys = [user_data.image_key(wanted, bootstrap=bootstrap)]
    (bootstrap / "steps" / "image" / "99-more").write_text("")
    keys.append(user_data.image_key(wanted, bootstrap=bootstrap))
    (bootstrap / "steps" / "image" / "99-more").rename(bootstrap / "steps" / "node" / "99-more")
    keys.append(user_data.image_key(wanted, bootstrap=bootstrap))
    (bootstrap / "lib.sh").unlink()
    keys.append(user_data.image_key(wanted, bootstrap=bootstrap))
    assert len(set(keys)) == 4


def test_an_image_s_name_is_over_the_software_alone(wanted: Settings) -> None:
    own = user_data.image_key(wanted, "base")
    assert len(own) == 16 and set(own) <= set("0123456789abcdef")
    other_key = {"public_key": public_key(body=bytes(32)), "public_key_file": Path("/x.pub")}
    for changes in ({"stack": "other"}, {"nodes": 64}, {"image": IMAGE}, other_key):
        assert user_data.image_key(replace(wanted, **changes), "base") == own, changes
    different = {
        user_data.image_key(wanted, "another base"),
        user_data.image_key(replace(wanted, profile="ipex"), "base"),
        user_data.image_key(replace(wanted, profile="ipex", collectives="ccl"), "base"),
    }
    assert len(different | {own}) == 4
