"""The archive of a container image: its form, its hashes, the same bytes each time, and what it refuses."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from infra.clouds.local.kubernetes import oci
from infra.clouds.local.kubernetes.oci import File, Folder, Link

NAME = "trainyard.local/base:1"
LONG = "usr/share/" + "/".join(["x" * 90] * 3)
LOWER: oci.Layer = {
    "/usr/bin/pause": File(b"\x7fELF", 0o755),
    "bin": Link("usr/bin"),
    "tmp": Folder(0o1777),
    LONG: File(b"deep"),
    "etc/ü": File(b""),
}
UPPER: oci.Layer = {"tmp/note": File(b"note")}


def blobs(path: Path) -> dict[str, bytes]:
    """The files of an archive, by name; every blob's name is its hash."""
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            opened = archive.extractfile(member)
            assert opened is not None and member.name not in found
            found[member.name] = opened.read()
    for name, content in found.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    return found


def described(files: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    """The blob that a descriptor names, of the size that it says."""
    content = files["blobs/" + descriptor["digest"].replace(":", "/")]
    assert len(content) == descriptor["size"]
    return content


def write(path: Path, *layers: oci.Layer, **settings: Any) -> tuple[dict[str, Any], dict[str, Any], list[bytes]]:
    """Write an image and follow it from its index. Returns its descriptor, its configuration and its layers."""
    digest = oci.write(path, NAME, layers, **settings)
    files = blobs(path)
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    [image] = json.loads(files["index.json"])["manifests"]
    assert image["digest"] == digest
    manifest = json.loads(described(files, image))
    config = json.loads(described(files, manifest["config"]))
    assert config["rootfs"] == {"type": "layers", "diff_ids": [layer["digest"] for layer in manifest["layers"]]}
    assert len(config["history"]) == len(layers), "buildah: internal error: history lists 0 non-empty layers"
    assert {layer["mediaType"] for layer in manifest["layers"]} == {"application/vnd.oci.image.layer.v1.tar"}
    assert len(files) == 4 + len(manifest["layers"]), "and nothing that is not reached"
    return image, config, [described(files, layer) for layer in manifest["layers"]]


def entries(layer: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(layer)) as opened:
        return {member.name: member for member in opened}


def test_an_image_has_its_name_its_settings_and_its_layers(tmp_path: Path) -> None:
    settings = {"user": "65532", "entrypoint": ("/pause", "now"), "environment": ("PATH=/usr/bin",)}
    image, config, layers = write(tmp_path / "a.tar", LOWER, UPPER, architecture="arm64", **settings)
    assert image["annotations"]["io.containerd.image.name"] == NAME
    assert image["annotations"]["org.opencontainers.image.ref.name"] == "1"
    assert (config["architecture"], config["os"]) == ("arm64", "linux")
    assert config["config"] == {"User": "65532", "Entrypoint": ["/pause", "now"], "Env": ["PATH=/usr/bin"]}
    lower, upper = map(entries, layers)
    assert list(lower) == sorted(lower, key=lambda name: name.split("/")), "a folder is before what is in it"
    assert (lower["usr/bin/pause"].mode, lower["usr/bin/pause"].size) == (0o755, 4)
    assert lower["bin"].issym() and lower["bin"].linkname == "usr/bin"
    assert lower["usr/bin"].isdir() and lower["usr/bin"].mode == 0o755, "a folder that nobody named"
    assert {LONG, "etc/ü"} <= set(lower)
    assert upper["tmp"].mode == 0o1777, "the layer over it leaves the folder as it is"
    assert {(entry.uid, entry.gid, entry.mtime) for entry in (*lower.values(), *upper.values())} == {(0, 0, 0)}


def test_an_image_without_settings_has_none(tmp_path: Path) -> None:
    _, config, layers = write(tmp_path / "a.tar", LOWER)
    assert config["config"] == {}
    assert config["architecture"] == {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    assert len(layers) == 1


def test_the_same_content_has_the_same_bytes(tmp_path: Path) -> None:
    """Whatever the order in which it comes, whoever has it, and whenever it was changed."""
    own = tmp_path / "pause"
    own.write_bytes(b"\x7fELF")
    os.utime(own, (1, 1))
    again = {**dict(reversed(list(LOWER.items()))), "/usr/bin/pause": File(own, 0o755)}
    first = oci.write(tmp_path / "a.tar", NAME, [LOWER, UPPER])
    assert oci.write(tmp_path / "b.tar", NAME, [again, UPPER]) == first
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    own.write_bytes(b"\x7fELG")
    assert oci.write(tmp_path / "c.tar", NAME, [again, UPPER]) != first


def test_a_folder_of_this_machine_becomes_a_layer(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("etc/app.d", "var/cache/apt", "empty"):
        (source / name).mkdir(parents=True)
    (source / "etc/app.d/run").write_text("#!/bin/sh\n")
    (source / "etc/app.d/run").chmod(0o4755)
    (source / "etc/broken").symlink_to("/nowhere")
    (source / "var/cache/apt/list").write_text("much")
    (source / "empty").chmod(0o700)
    layer = oci.tree(source, "/opt", skip=("var/cache",))
    _, _, [written] = write(tmp_path / "a.tar", layer)
    found = entries(written)
    assert set(found) == {
        *("opt", "opt/empty", "opt/etc", "opt/etc/app.d", "opt/etc/app.d/run", "opt/etc/broken", "opt/var")
    }
    assert found["opt/etc/app.d/run"].mode == 0o4755
    assert found["opt/etc/broken"].linkname == "/nowhere"
    assert found["opt/empty"].mode == 0o700
    assert "/" not in oci.tree(source), "an image's root is there without being named"


def test_a_device_or_a_pipe_is_nothing_for_an_image(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe: neither a file, a folder nor a link"):
        oci.tree(tmp_path)


@pytest.mark.parametrize("name", ["base", "base:1", "trainyard/base:1", "trainyard.local/base", "Trainyard.local/b:1"])
def test_an_image_needs_its_whole_name(tmp_path: Path, name: str) -> None:
    """Kubernetes would look for it at docker.io, or not find it."""
    with pytest.raises(ValueError, match="not the whole name"):
        oci.write(tmp_path / "a.tar", name, [LOWER])


@pytest.mark.parametrize(
    "layers, message",
    [
        ([{"../etc/passwd": File(b"")}], "not a path in an image"),
        ([{"/": Folder()}], "not a path in an image"),
        ([{"a": File(b""), "/a": File(b"")}], "twice in one layer"),
        ([{"a": File(b""), "a/b": File(b"")}], "'a' is not a folder"),
        ([{"bin": Link("usr/bin")}, {"bin/x": File(b"")}], "'bin' is not a folder"),
    ],
)
def test_a_layer_that_no_image_can_have(tmp_path: Path, layers: list[oci.Layer], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        oci.write(tmp_path / "a.tar", NAME, layers)
    assert list(tmp_path.iterdir()) == [], "nothing unfinished is left"


def test_an_image_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    oci.write(tmp_path / "a.tar", NAME, [LOWER])
    before = (tmp_path / "a.tar").read_bytes()
    with pytest.raises(FileNotFoundError):
        oci.write(tmp_path / "a.tar", NAME, [{"a": File(tmp_path / "absent")}])
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]
    assert (tmp_path / "a.tar").read_bytes() == before


@pytest.mark.acceptance
def test_skopeo_reads_it(tmp_path: Path) -> None:
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        pytest.skip("skopeo is not installed (Debian: apt-get install skopeo)")
    digest = oci.write(tmp_path / "a.tar", NAME, [LOWER, UPPER], environment=["A=b"])
    policy = tmp_path / "policy.json"
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    argv = [skopeo, "--policy", str(policy), "copy", f"oci-archive:{tmp_path}/a.tar:1", f"dir:{tmp_path}/copy"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    copied = (tmp_path / "copy/manifest.json").read_bytes()
    assert f"sha256:{hashlib.sha256(copied).hexdigest()}" == digest
