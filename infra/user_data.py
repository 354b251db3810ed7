"""bootstrap/ and the settings, made into cloud-init user data. Values reach the scripts through one env file.

A bare machine gets the scripts with it; a machine of a baked image has them, and gets only what is its own.
"""

from __future__ import annotations

import ast
import base64
import gzip
import hashlib
import re
from pathlib import Path
from typing import Any

import yaml

from infra import cloud_config
from infra.config.kinds import CLUSTERS
from infra.config.settings import Settings
from infra.errors import UsageError

BOOTSTRAP = Path(__file__).resolve().parent.parent / "bootstrap"
ON_NODE = "/opt/trainyard/bootstrap"
_COMMENT = re.compile(rb"^[ \t]*#(?!!).*\n", re.MULTILINE)
"""A line that is only a comment, in shell, Python, units and settings alike."""


def image_key(settings: Settings, *base: str, bootstrap: Path = BOOTSTRAP) -> str:
    """Name of the image that these settings bake: 16 hexadecimal digits over everything that goes into it."""
    digest = hashlib.sha256()
    for part in (*base, settings.profile, settings.collectives):
        digest.update(part.encode() + b"\0")
    for name, content, mode in _scripts(bootstrap, settings.cluster):
        digest.update(f"{name} {mode}\0".encode() + content + b"\0")
    digest.update((bootstrap / cloud_config.NAME).read_bytes())
    return digest.hexdigest()[:16]


def for_bake(settings: Settings, image: str, *, last_resort: str = "", bootstrap: Path = BOOTSTRAP) -> str:
    """User data of the machine that an image is baked from: the scripts, and the order to run the image part.

    `last_resort` is a bash script that sets the builder's own end: cloud-init runs it first, at each boot.
    """
    return _compose(settings, image, "bake", "builder", "builder", bootstrap, scripts=True, last_resort=last_resort)


def for_node(settings: Settings, image: str, name: str, role: str, *, baked: bool, bootstrap: Path = BOOTSTRAP) -> str:
    """User data of a node; `baked` says that its image already has the scripts and the software."""
    return _compose(settings, image, "node" if baked else "both", name, role, bootstrap, scripts=not baked)


def packed(text: str) -> str:
    """User data as the clouds' interfaces take it: gzip, then base64. The same text is the same bytes."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _compose(
    settings: Settings,
    image: str,
    mode: str,
    name: str,
    role: str,
    bootstrap: Path,
    *,
    scripts: bool,
    last_resort: str = "",
) -> str:
    config = cloud_config.read(bootstrap)
    if last_resort:
        config["bootcmd"] = [["bash", "-c", last_resort], *config.get("bootcmd", [])]
    user = config["users"][0]
    if mode != "bake":
        user["ssh_authorized_keys"] = [settings.public_key]
    values = {
        "TRAINYARD_MODE": mode,
        "TRAINYARD_STACK": settings.stack,
        "TRAINYARD_NODE": name,
        "TRAINYARD_ROLE": role,
        "TRAINYARD_PROFILE": settings.profile,
        "TRAINYARD_COLLECTIVES": settings.collectives,
        "TRAINYARD_IMAGE": image,
        "TRAINYARD_CLUSTER": settings.cluster,
        "TRAINYARD_MAX_HOURS": str(settings.max_hours),
        "TRAINYARD_IDLE_MINUTES": str(settings.idle_minutes),
    }
    # Azure has these metrics of every machine by itself: nothing on a node sends them.
    if settings.cloud.monitoring and mode != "bake" and (bootstrap / settings.cluster / "monitor.py").exists():
        values["TRAINYARD_MONITORING"] = "true"
    if settings.cloud.region:
        values["TRAINYARD_REGION"] = (
            settings.cloud.region
        )  # training/store/bucket.py's: no library asks the machine for it
    env = "".join(f"{key}={value}\n" for key, value in values.items())
    files = [{"path": "/etc/trainyard.env", "content": env}]
    if scripts:
        files += [_file(*script) for script in _scripts(bootstrap, settings.cluster)]
    config["write_files"] = [*config.get("write_files", []), *files]
    return "#cloud-config\n" + yaml.dump(config, Dumper=_Dumper, sort_keys=False, width=1000)


def without_comments(text: str) -> str:
    """A script without the lines that are only comments: user data has a limit."""
    return _COMMENT.sub(b"", text.encode()).decode()


class _Dumper(yaml.SafeDumper):
    """Files as blocks of plain lines: they pack better than one quoted line each, and a person can read them."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def _file(name: str, content: bytes, mode: str) -> dict[str, Any]:
    # Plain text: a cloud's limit is on the whole, compressed, which is a third less than files compressed one by one.
    try:
        return {"path": f"{ON_NODE}/{name}", "permissions": mode, "content": content.decode()}
    except UnicodeDecodeError:
        raise UsageError(f"bootstrap/{name}: must be text in UTF-8, as it travels in user data") from None


def _scripts(bootstrap: Path, cluster: str) -> list[tuple[str, bytes, str]]:
    """(name, content, mode) of every file that goes to the machine, in a stable order.

    What only one kind of cluster needs is in a folder of its name, and comments and docstrings stay at home: user data
    has a limit.
    """
    others = {kind for kind in CLUSTERS if kind != cluster}
    found = []
    for path in sorted(bootstrap.rglob("*")):
        if path.relative_to(bootstrap).parts[0] in others:
            continue
        if path.is_file() and path.name != cloud_config.NAME and "__pycache__" not in path.parts:
            name, content = str(path.relative_to(bootstrap)), _COMMENT.sub(b"", path.read_bytes())
            if path.suffix == ".py":
                content = _without_docstrings(name, content)
            # The mode follows from the content: a checkout's umask or a zip must not change an image's name.
            found.append((name, content, "0755" if content.startswith(b"#!") else "0644"))
    return found


def _without_docstrings(name: str, program: bytes) -> bytes:
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
