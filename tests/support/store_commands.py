"""The store's command as a process, as on a node, and folders with a manifest for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import bucket_servers
import numpy as np
import pytest
from bucket_servers import Server

from training import manifest
from training.store import bucket

ROOT = Path(__file__).resolve().parents[2]
SERVERS = {"directory": bucket_servers.directory, "s3": bucket_servers.s3, "blobs": bucket_servers.blobs}


def folder_of(folder: Path, sizes: dict[str, int]) -> Path:
    random = np.random.default_rng(2)
    listed = {}
    for name, size in sizes.items():
        (folder / name).write_bytes(random.bytes(size))
        listed[name] = {"bytes": size, "sha256": manifest.checksum(folder / name)}
    manifest.publish(folder / manifest.NAME, manifest.render({"format": 1, "files": listed}))
    return folder


def store(server: Server, *arguments: str | Path) -> subprocess.Popen[str]:
    """The command, as on a node."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "AZURE_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "training.store", *map(str, arguments)],
        cwd=ROOT,
        env={**environment, **server.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(process: subprocess.Popen[str], code: int = 0) -> str:
    """What it said, once it has ended as it should."""
    out, err = process.communicate(timeout=150)
    assert process.returncode == code, f"{out}\n{err}"
    assert "Traceback" not in err
    if code:
        assert err.startswith("error: ") and err.count("\n") == 1, err
    return out + err


def place(server: Server, url: str, monkeypatch: pytest.MonkeyPatch) -> bucket.BucketFolder:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return bucket.open_folder(url)


def same(one: Path, other: Path) -> bool:
    names = sorted(path.name for path in one.iterdir())
    return names == sorted(path.name for path in other.iterdir()) and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )
