"""infra.user_data: what a machine is told, byte for byte, and what an image's name depends on."""

from __future__ import annotations

import ast
import gzip
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sample_inputs import public_key

from infra import user_data
from infra.clouds.local import paths
from infra.config.settings import Settings, load
from infra.errors import UsageError

IMAGE = "0123456789abcdef"
CLOUDS = ("aws-xeon", "azure-xeon")
"""Folders of what only one kind of cluster gets."""
AWS_LIMIT = 16 * 1024
"""What AWS takes of user data, compressed (TRAPS.md 16)."""


@pytest.fixture
def wanted(good: dict[str, str]) -> Settings:
    return load("local", good)


@pytest.fixture
def bootstrap(tmp_path: Path) -> Path:
    """A copy of bootstrap/ to change."""
    return Path(shutil.copytree(user_data.BOOTSTRAP, tmp_path / "bootstrap"))


def parts(settings: Settings) -> dict[str, str]:
    """Every user data that there is."""
    return {
        "bake": user_data.for_bake(settings, IMAGE),
        "baked": user_data.for_node(settings, IMAGE, "node1", "head", baked=True),
        "bare": user_data.for_node(settings, IMAGE, "node2", "worker", baked=False),
    }


def written(text: str) -> dict[str, dict[str, Any]]:
    """The files of user data, by path."""
    return {file["path"]: file for file in yaml.safe_load(text)["write_files"]}


def env(text: str) -> dict[str, str]:
    lines = written(text)["/etc/trainyard.env"]["content"].splitlines()
    return dict(line.split("=", 1) for line in lines)


def scripts(*, every: bool = False) -> Iterator[Path]:
    """Those of the local stack, or of every kind of cluster."""
    for path in user_data.BOOTSTRAP.rglob("*"):
        other = not every and path.relative_to(user_data.BOOTSTRAP).parts[0] in CLOUDS
        if path.is_file() and path.name != "cloud-config.yaml" and "__pycache__" not in path.parts and not other:
            yield path


def sent(path: Path, bootstrap: Path = user_data.BOOTSTRAP) -> bytes:
    """What a machine gets of a script: all but the lines that are only a comment or a docstring."""
    name = str(path.relative_to(bootstrap))
    (content,) = [
        content
        for cluster in ("local", *CLOUDS)
        for script, content, _ in user_data._scripts(bootstrap, cluster)
        if script == name
    ][:1]
    return content


def without_docstrings(program: bytes) -> str:
    tree = ast.parse(program)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


@pytest.mark.parametrize("path", sorted(scripts(every=True)), ids=lambda path: path.name)
def test_a_script_without_its_comments_is_the_same_program(path: Path, tmp_path: Path) -> None:
    """A line in a text of several lines may look like a comment."""
    whole = path.read_bytes()
    assert len(sent(path)) <= len(whole)
    if path.suffix == ".py":
        assert without_docstrings(sent(path)) == without_docstrings(whole)
        assert b'"""' not in sent(path)
    elif path.suffix in (".service", ".timer"):
        assert b"\\\n" not in whole, "or a comment within a long line would end it"
    elif path.suffix != ".env":
        (tmp_path / "sent").write_bytes(sent(path))
        parsed = [
            [line for line in subprocess.check_output(["bash", "--pretty-print", file], text=True).splitlines() if line]
            for file in (path, tmp_path / "sent")
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
    told = {name: env(text) for name, text in parts(wanted).items()}
    builder = {"TRAINYARD_MODE": "bake", "TRAINYARD_NODE": "builder", "TRAINYARD_ROLE": "builder"}
    assert told["bake"] == {**common, **builder}
    assert told["baked"] == {**common, "TRAINYARD_MODE": "node", "TRAINYARD_NODE": "node1", "TRAINYARD_ROLE": "head"}
    assert told["bare"] == {**common, "TRAINYARD_MODE": "both", "TRAINYARD_NODE": "node2", "TRAINYARD_ROLE": "worker"}


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
        size = len(gzip.compress(text.encode(), mtime=0))
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


# --- the image's name ---


@settings(max_examples=40)
@given(data=st.data())
def test_an_image_s_name_changes_with_any_byte_of_the_bootstrap_but_its_comments(
    data: st.DataObject, good: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    wanted = load("local", good)
    root = tmp_path_factory.getbasetemp() / "any-byte"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(user_data.BOOTSTRAP, root)
    files = (p for p in root.rglob("*") if p.is_file() and p.suffix != ".pyc" and p.parts[-2] not in CLOUDS)
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


# --- a cloud-config.yaml that somebody has changed ---


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


# --- cloud-init itself ---


def in_base(script: str, told: str) -> str:
    """What a command says that runs in a base, in a mount namespace of its own: /tmp and /opt are gone afterwards."""
    bases = sorted(paths.home().glob("base/*/rootfs/usr/bin/cloud-init"))
    if os.geteuid() != 0 or not bases:
        pytest.skip("needs root, and a base that `fab up` has made; a bake asks cloud-init as well")
    mounted = (
        'for d in tmp opt; do mount -t tmpfs none "$1/$d"; done; cat > "$1/tmp/data"; exec chroot "$1" sh -euc "$2"'
    )
    argv = ["unshare", "--mount", "sh", "-euc", mounted, "sh", bases[0].parents[2], script]
    done = subprocess.run(argv, input=told, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["bake", "baked", "bare"])
def test_cloud_init_accepts_it(name: str, wanted: Settings) -> None:
    in_base("cloud-init schema --config-file /tmp/data", parts(wanted)[name])


WRITE = """
import sys, yaml
from cloudinit.config.cc_write_files import write_files
files = yaml.safe_load(open("/tmp/data"))["write_files"]
write_files("test", [file for file in files if file["path"].startswith("/opt/")], "root:root")
"""


def test_cloud_init_writes_the_scripts_as_they_are(wanted: Settings) -> None:
    listing = f"python3 -c '{WRITE}' && cd /opt/trainyard/bootstrap && find . -type f -exec sha256sum {{}} +"
    said = dict(reversed(line.split("  ./")) for line in in_base(listing, parts(wanted)["bare"]).splitlines())
    assert said == {
        str(path.relative_to(user_data.BOOTSTRAP)): hashlib.sha256(sent(path)).hexdigest() for path in scripts()
    }
