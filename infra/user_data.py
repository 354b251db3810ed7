"""Makes cloud-init user data from bootstrap/ and the settings. Values reach the scripts through one env file.

A bare machine gets the scripts in its user data. A baked image has them already, so its machines get only the values.
"""

from __future__ import annotations

import ast
import base64
import functools
import hashlib
import io
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from infra import cloud_config
from infra.config.kinds import CLOUDS, CLUSTERS
from infra.config.settings import Settings
from infra.errors import UsageError

BOOTSTRAP = Path(__file__).resolve().parent.parent / "bootstrap"
ON_NODE = "/opt/trainyard/bootstrap"
OVERLAYS = ("cuda",)
"""Profiles with a folder of their own in bootstrap/, which is laid over the rest: its files come beside those, or in
place of one with the same name, except versions.env, which is added to the common one. On other machines nothing of it
exists, so it is no part of their images' names."""
CONTAINER = "container"
"""The folder of bootstrap/ that is for container images alone, and on no machine."""
_WHOLE = 4096
"""Characters: up to here, user data is packed as one block."""
_FILE_KEYS = ("path", "permissions", "content")
_COMMENT = re.compile(rb"^[ \t]*#(?!!).*\n", re.MULTILINE)
"""A comment-only line, in shell, Python, units and settings."""


def image_key(settings: Settings, *base: str, bootstrap: Path = BOOTSTRAP) -> str:
    """Name of the image that these settings bake: 16 hexadecimal digits, a hash of everything that goes into it."""
    digest = hashlib.sha256()
    for part in (*base, settings.profile, settings.collectives):
        digest.update(part.encode() + b"\0")
    for name, content, mode in _scripts(bootstrap, settings.facts.node_files, settings.profile):
        digest.update(f"{name} {mode}\0".encode() + content + b"\0")
    digest.update((bootstrap / cloud_config.NAME).read_bytes())
    return digest.hexdigest()[:16]


def for_bake(
    settings: Settings,
    image: str,
    *,
    last_resort: str = "",
    machine: Mapping[str, object] = MappingProxyType({}),
    alone: bool = True,
    bootstrap: Path = BOOTSTRAP,
) -> str:
    """User data of the builder: the scripts, and the command that runs the image part. Not `alone`: only the values;
    the scripts come later, as `archive`, and whoever brings them starts the bootstrap.

    `last_resort`: a bash script that limits the builder's life; cloud-init runs it first, at each boot. `machine`:
    facts of the nodes' type for the steps, by their names after TRAINYARD_.
    """
    config = _composed(settings, image, "bake", ("builder", "builder"), bootstrap, last_resort, machine)
    if not alone:
        config["write_files"] = [file for file in config["write_files"] if not file["path"].startswith(ON_NODE)]
        del config["runcmd"]  # it starts the bootstrap
    return _text(config)


def archive(settings: Settings, *, bootstrap: Path = BOOTSTRAP) -> str:
    """The scripts for a machine with these settings: a tar file for ON_NODE, packed by xz, in base64. Deterministic."""
    return _archive(*_scripts(bootstrap, settings.facts.node_files, settings.profile))


@functools.cache
def _archive(*scripts: tuple[str, bytes, str]) -> str:
    """Kept, as a program asks for it several times and packing takes 35 ms."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as made:
        for name, content, mode in scripts:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), int(mode, 8)
            made.addfile(entry, io.BytesIO(content))
    return base64.b64encode(packed.getvalue()).decode()


def for_node(
    settings: Settings,
    image: str,
    name: str,
    role: str,
    *,
    baked: bool,
    machine: Mapping[str, object] = MappingProxyType({}),
    bootstrap: Path = BOOTSTRAP,
) -> str:
    """User data of a node. `baked`: its image already has the scripts and the software. `machine`: as in for_bake."""
    return _text(_composed(settings, image, "node" if baked else "both", (name, role), bootstrap, machine=machine))


def files_for_node(
    settings: Settings, image: str, name: str, role: str, machine: Mapping[str, object] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """The files that cloud-init writes on a node with a bare image: {"path", "content", "permissions"}, the last one
    where it is not 0644. `machine`: as in for_bake."""
    config = _composed(settings, image, "both", (name, role), BOOTSTRAP, machine=machine)
    found: list[dict[str, Any]] = config["write_files"]
    return found


@functools.cache
def packed(text: str) -> str:
    """User data in the form of the clouds' APIs: gzip, then base64. Deterministic. Kept, as it takes 0.15 s."""
    from zopfli import gzip  # of the clouds' extras: a local stack needs none

    # Each node of a baked image has a text of its own, of 1 KB: to look for where to split it takes 60 ms of 62, and
    # finds nothing.
    packed: bytes = gzip.compress(text.encode(), numiterations=1, blocksplitting=len(text) > _WHOLE)
    return base64.b64encode(packed).decode()


def _composed(
    settings: Settings,
    image: str,
    mode: str,
    node: tuple[str, str],
    bootstrap: Path,
    last_resort: str = "",
    machine: Mapping[str, object] = MappingProxyType({}),
) -> dict[str, Any]:
    """What the user data says, by cloud-init's keys. `mode`: that of bootstrap.sh; `node`: its name and role."""
    config = cloud_config.read(bootstrap)
    if last_resort:
        config["bootcmd"] = [["bash", "-c", last_resort], *config.get("bootcmd", [])]
    if mode != "bake":
        config["users"][0]["ssh_authorized_keys"] = [settings.public_key]
    values: dict[str, object] = {"MODE": mode, "STACK": settings.stack, "NODE": node[0], "ROLE": node[1]}
    values |= {"PROFILE": settings.profile, "COLLECTIVES": settings.collectives, "IMAGE": image}
    values |= {
        "CLUSTER": settings.facts.node_files,
        "MAX_HOURS": settings.max_hours,
        "IDLE_MINUTES": settings.idle_minutes,
    }
    # AWS only (Azure measures machines by itself): a cluster has monitor.py if its nodes send metrics.
    if settings.cloud.monitoring and mode != "bake" and (bootstrap / settings.facts.node_files / "monitor.py").exists():
        values["MONITORING"] = "true"
    if settings.cloud.region:  # for training/store/bucket.py: no library finds the region by itself
        values["REGION"] = settings.cloud.region
    values |= machine
    env = "".join(f"TRAINYARD_{key}={value}\n" for key, value in values.items())
    files = [{"path": "/etc/trainyard.env", "content": env}]
    if mode != "node":
        files += [_file(*script) for script in _scripts(bootstrap, settings.facts.node_files, settings.profile)]
    config["write_files"] = [*config.get("write_files", []), *files]
    return config


def _text(config: dict[str, Any]) -> str:
    """What one dump of all would write, in parts: most of it is the scripts, and those are the same for each node."""
    parts = []
    for key, value in config.items():
        if key == "write_files" and value:
            parts += [f"{key}:\n", *map(_file_text, value)]
        else:
            parts.append(_dumped({key: value}))
    return "#cloud-config\n" + "".join(parts)


def _file_text(file: dict[str, Any]) -> str:
    return _script_text(*file.values()) if tuple(file) == _FILE_KEYS else _dumped([file])


@functools.cache
def _script_text(*values: str) -> str:
    """Kept for the next machine: all scripts together take 45 ms."""
    return _dumped([dict(zip(_FILE_KEYS, values, strict=True))])


def _dumped(part: object) -> str:
    text: str = yaml.dump(part, Dumper=_Dumper, sort_keys=False, width=1000)
    return text


def without_comments(text: str) -> str:
    """A script without comment-only lines, as user data has a size limit."""
    return _COMMENT.sub(b"", text.encode()).decode()


class _Dumper(yaml.SafeDumper):
    """Writes files as literal blocks: they compress better than quoted lines, and people can read them."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def _file(name: str, content: bytes, mode: str) -> dict[str, Any]:
    # Uncompressed text: the limit applies to the whole after compression, a third less than files compressed singly.
    try:
        return {"path": f"{ON_NODE}/{name}", "permissions": mode, "content": content.decode()}
    except UnicodeDecodeError:
        raise UsageError(f"bootstrap/{name}: must be text in UTF-8, as it travels in user data") from None


def _scripts(bootstrap: Path, cloud: str, profile: str = "native") -> list[tuple[str, bytes, str]]:
    """(name, content, mode) of every file for a machine of the cloud whose folder is `cloud`, in a stable order.

    A folder named after a kind of cluster is for its cloud only, one named after a profile for that profile. Comments
    and docstrings are removed, as user data has a size limit.
    """
    folders = {*CLUSTERS, *(facts.node_files for facts in CLOUDS.values()), *OVERLAYS, CONTAINER}
    excluded = {*folders, cloud_config.NAME, "__pycache__"} - {cloud, profile}
    files: dict[Path, bytes] = {}
    for path in sorted(bootstrap.rglob("*")):
        name = path.relative_to(bootstrap)
        if path.is_file() and not excluded.intersection(name.parts) and name.parts[0] not in OVERLAYS:
            files[name] = _COMMENT.sub(b"", path.read_bytes())
    if profile in OVERLAYS:
        for path in sorted((bootstrap / profile).rglob("*")):
            name = path.relative_to(bootstrap / profile)
            if path.is_file() and not excluded.intersection(name.parts):
                added = files[name] if name.name == "versions.env" else b""
                files[name] = added + _COMMENT.sub(b"", path.read_bytes())
    found = []
    for name in sorted(files):
        content = _allowing(profile, files[name]) if name.name == "bootstrap.sh" else files[name]
        if name.suffix == ".py":
            content = _without_docstrings(str(name), content)
        # Mode from the content: a checkout's umask or a zip file must not change an image's name.
        found.append((str(name), content, "0755" if content.startswith(b"#!") else "0644"))
    return found


def _allowing(profile: str, runner: bytes) -> bytes:
    """bootstrap.sh, without the profiles whose folder the machine has not."""
    absent = "|".join(name for name in OVERLAYS if name != profile)
    return re.sub(rf"(?m)^(\tTRAINYARD_PROFILE .*?) ({absent})\b".encode(), rb"\1", runner) if absent else runner


@functools.cache
def _without_docstrings(name: str, program: bytes) -> bytes:
    """Kept for the next machine: a stack asks for the same programs for each node, and for its image's key."""
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"bootstrap/{name}: not Python: {error}") from None
    lines = program.splitlines(keepends=True)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            first = node.body[0]
            if len(node.body) > 1 and first.end_lineno is not None:
                lines[first.lineno - 1 : first.end_lineno] = [b""] * (first.end_lineno - first.lineno + 1)
    return b"".join(lines)
