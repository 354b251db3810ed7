"""Build the wheel of training/, as `pip wheel training/` would, in milliseconds; equal files give equal bytes."""

from __future__ import annotations

import base64
import hashlib
import io
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def wheel(source: Path) -> tuple[str, bytes]:
    """(file name, content) of the wheel of `source`, a package with its pyproject.toml."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    name, version = str(project["name"]).replace("-", "_"), str(project["version"])
    info = f"{name}-{version}.dist-info"
    files = {f"{source.name}/{path.relative_to(source)}": path.read_bytes() for path in _package(source)}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: trainyard\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{path},{_digest(content)},{len(content)}\n" for path, content in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    return f"{name}-{version}-py3-none-any.whl", archive(files)


def archive(files: Mapping[str, bytes]) -> bytes:
    """A zip of these files with sorted names and fixed dates: equal files give equal bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _LONG_AGO)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, content)
    return out.getvalue()


def _package(source: Path) -> list[Path]:
    """The package's own files, without hidden folders and other files that tools leave there."""
    files = [path for kind in ("*.py", "*.toml") for path in source.rglob(kind) if path.name != "pyproject.toml"]
    return sorted(path for path in files if not any(part[0] == "." for part in path.relative_to(source).parts))


def _digest(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
