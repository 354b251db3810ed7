"""infra.user_data: what a machine gets, byte for byte."""

from __future__ import annotations

import ast
import base64
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sample_inputs import public_key
from user_data_parts import AWS_LIMIT, IMAGE, env, parts, scripts, sent, written

from infra import user_data
from infra.config.settings import Settings, load
from infra.errors import UsageError


def without_docstrings(program: bytes) -> str:
    tree = ast.parse(program)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


@pytest.mark.parametrize("path", sorted(scripts(every=True)), ids=lambda path: path.name)
def test_a_script_without_its_comments_is_the_same_program(path: Path, tmp_path: Path) -> None:
    """A line in a text of several lines may look like a comment."""
    original = path.read_bytes()
    assert len(sent(path)) <= len(original)
    if path.suffix == ".py":
        assert without_docstrings(sent(path)) == without_docstrings(original)
        assert b'"""' not in sent(path)
    elif path.suffix in (".service", ".timer"):
        assert b"\\\n" not in original, "or a comment within a long line would end it"
    elif path.suffix != ".env":
        (tmp_path / "sent").write_bytes(sent(path))
        # The runner names a profile with a folder of its own only to machines that have it.
        (tmp_path / "original").write_bytes(user_data._allowing("native", original))
        parsed = [
            [line for line in subprocess.check_output(["bash", "--pretty-print", file], text=True).splitlines() if line]
            for file in (tmp_path / "original", tmp_path / "sent")
        ]
        assert parsed[0] == parsed[1] != []


def test_a_program_that_is_none_is_refused_before_anything_is_made(wanted: Settings, bootstrap: Path) -> None:
    (bootstrap / "probe.py").write_text("def main(:\n")
    with pytest.raises(UsageError, match=r"^bootstrap/probe.py: not Python: "):
        user_data.image_key(wanted, bootstrap=bootstrap)


def test_it_is_cloud_config(wanted: Settings) -> None:
    for text in parts(wanted).values():
        assert text.startswith("#cloud-config\n") and text.isascii()
        static = yaml.safe_load((user_data.BOOTSTRAP / "cloud-config.yaml").read_text())
        loaded = yaml.safe_load(text)
        for key in set(static) - {"users", "write_files"}:
            assert loaded[key] == static[key]


def test_values_reach_the_scripts_through_one_file(wanted: Settings) -> None:
    common = {
        "TRAINYARD_STACK": "local",
        "TRAINYARD_PROFILE": "native",
        "TRAINYARD_COLLECTIVES": "gloo",
        "TRAINYARD_IMAGE": IMAGE,
        "TRAINYARD_CLUSTER": "local",
        "TRAINYARD_MAX_HOURS": "0",
        "TRAINYARD_IDLE_MINUTES": "0",
    }
    environments = {name: env(text) for name, text in parts(wanted).items()}
    builder = {"TRAINYARD_MODE": "bake", "TRAINYARD_NODE": "builder", "TRAINYARD_ROLE": "builder"}
    assert environments["bake"] == {**common, **builder}
    assert environments["baked"] == {
        **common,
        "TRAINYARD_MODE": "node",
        "TRAINYARD_NODE": "node1",
        "TRAINYARD_ROLE": "head",
    }
    assert environments["bare"] == {
        **common,
        "TRAINYARD_MODE": "both",
        "TRAINYARD_NODE": "node2",
        "TRAINYARD_ROLE": "worker",
    }


def test_a_node_in_a_cloud_knows_its_region(wanted: Settings) -> None:
    """Its bucket is there, and AWS's library would look in us-east-1."""
    settings = replace(wanted, cloud=replace(wanted.cloud, region="eu-west-1"))
    assert {env(text)["TRAINYARD_REGION"] for text in parts(settings).values()} == {"eu-west-1"}


def test_a_bare_machine_gets_every_script(wanted: Settings) -> None:
    for name in ("bake", "bare"):
        files = written(parts(wanted)[name])
        expected = {f"/opt/trainyard/bootstrap/{path.relative_to(user_data.BOOTSTRAP)}": path for path in scripts()}
        assert set(files) == {*expected, "/etc/trainyard.env"}
        for target, path in expected.items():
            assert files[target]["content"].encode() == sent(path) and "encoding" not in files[target]
            executable = bool(path.stat().st_mode & 0o100)
            assert files[target]["permissions"] == ("0755" if executable else "0644"), f"{path}: mode and first line"


def test_what_one_kind_of_cluster_needs_travels_with_that_kind_alone(wanted: Settings, bootstrap: Path) -> None:
    azure = replace(wanted, cluster="azure-xeon")
    path = "/opt/trainyard/bootstrap/azure-xeon/deallocate.py"
    assert path in written(user_data.for_bake(azure, IMAGE)) and path not in written(parts(wanted)["bake"])
    keys = [user_data.image_key(settings, bootstrap=bootstrap) for settings in (azure, wanted)]
    (bootstrap / "azure-xeon/deallocate.py").write_text("")
    changed = [user_data.image_key(settings, bootstrap=bootstrap) for settings in (azure, wanted)]
    assert changed[0] != keys[0] and changed[1] == keys[1]


def test_a_baked_machine_gets_only_what_is_its_own(wanted: Settings) -> None:
    text = parts(wanted)["baked"]
    assert set(written(text)) == {"/etc/trainyard.env"}
    assert len(text) < 4096


def test_it_fits_into_what_a_cloud_takes(wanted: Settings) -> None:
    for name, text in parts(wanted).items():
        size = len(base64.b64decode(user_data.packed(text)))
        assert size <= AWS_LIMIT, f"{name}: {size} bytes compressed"


def test_the_operator_s_public_key_opens_the_nodes_and_nothing_secret_is_told(wanted: Settings) -> None:
    for name, text in parts(wanted).items():
        keys = yaml.safe_load(text)["users"][0].get("ssh_authorized_keys", [])
        assert keys == ([] if name == "bake" else [public_key()]), "a baked image opens to nobody"
        plain = text + "".join(str(file) for file in written(text).values())
        assert "PRIVATE KEY" not in plain and "not for you" not in plain


def test_the_same_settings_are_the_same_text(wanted: Settings) -> None:
    assert parts(wanted) == parts(wanted), "or every preview would show a change"


def test_a_checkout_s_modes_and_times_do_not_matter(wanted: Settings, bootstrap: Path) -> None:
    for path in bootstrap.rglob("*"):
        os.utime(path, (0, 0))
        path.chmod(0o777 if path.is_dir() else 0o600)
    (bootstrap / "__pycache__").mkdir(exist_ok=True)
    (bootstrap / "__pycache__" / "record.cpython-311.pyc").write_bytes(b"\0")
    assert user_data.image_key(wanted, bootstrap=bootstrap) == user_data.image_key(wanted)
    assert user_data.for_bake(wanted, IMAGE, bootstrap=bootstrap) == user_data.for_bake(wanted, IMAGE)


def test_a_script_that_is_not_text_is_named(wanted: Settings, bootstrap: Path) -> None:
    (bootstrap / "steps" / "blob").write_bytes(b"\xff\0")
    with pytest.raises(UsageError, match=r"^bootstrap/steps/blob: must be text"):
        user_data.for_bake(wanted, IMAGE, bootstrap=bootstrap)


@given(content=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_travels_byte_for_byte(content: str, good: dict[str, str], key_file: Path) -> None:
    root = key_file.parent / "any-text"
    root.mkdir(exist_ok=True)
    shutil.copy(user_data.BOOTSTRAP / "cloud-config.yaml", root)
    (root / "file").write_bytes(content.encode())
    text = user_data.for_bake(load("local", good), IMAGE, bootstrap=root)
    assert written(text)["/opt/trainyard/bootstrap/file"]["content"] == content


@pytest.mark.parametrize(
    "text",
    [
        "users: [",
        "users:\n\t- name: x\n",
        "",
        "just text",
        "- a",
        "users: []",
        "users: trainyard",
        "users: [trainyard]",
        b"\xff\xfe",
    ],
)
def test_a_broken_cloud_config_is_one_line_with_its_name(text: str | bytes, wanted: Settings, bootstrap: Path) -> None:
    (bootstrap / "cloud-config.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(UsageError) as caught:
        user_data.for_node(wanted, IMAGE, "node1", "head", baked=True, bootstrap=bootstrap)
    line = str(caught.value)
    assert line.startswith("bootstrap/cloud-config.yaml: ") and len(line.splitlines()) == 1


def test_files_of_the_cloud_config_s_own_are_kept(wanted: Settings, bootstrap: Path) -> None:
    with (bootstrap / "cloud-config.yaml").open("a") as file:
        file.write("write_files:\n- {path: /etc/motd, content: hello}\n")
    text = user_data.for_node(wanted, IMAGE, "node1", "head", baked=True, bootstrap=bootstrap)
    assert list(written(text)) == ["/etc/motd", "/etc/trainyard.env"]
