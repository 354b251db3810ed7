"""ParallelCluster in an environment of its own, and an AWS on loopback for its validators."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from infra.clouds.aws.pcluster_config import VERSION

JUDGE = Path(__file__).with_name("pcluster_judge.py")
OFFICIAL, OWN = "ami-0aaaaaaaaaaaaaaaa", "ami-0bbbbbbbbbbbbbbbb"
_COMMON = {"architecture": "x86_64", "virtualization_type": "hvm", "hypervisor": "xen", "root_device_type": "ebs"}
_COMMON |= {"state": "available", "image_type": "machine", "root_device_name": "/dev/sda1", "sriov": "simple"}
_COMMON["description"] = "AWS ParallelCluster AMI for ubuntu2404, kernel-6.8, lustre, efa"
_BUILT = {"version": VERSION, "os": "ubuntu2404", "build_status": "available", "image_id": "trainyard-closed-driver"}
IMAGES = [
    {
        **_COMMON,
        **{"ami_id": OFFICIAL, "owner_id": "247102896272", "public": True},
        "name": f"aws-parallelcluster-{VERSION}-ubuntu-2404-lts-hvm-x86_64-202606010000",
        "creation_date": "2026-06-01T00:00:00.000Z",
    },
    {
        **_COMMON,
        **{"ami_id": OWN, "owner_id": "123456789012", "public": False, "name": "trainyard-closed-driver"},
        "tags": {f"parallelcluster:{key}": value for key, value in _BUILT.items()},
        "creation_date": "2026-06-01T00:00:00.000Z",
    },
]
"""ParallelCluster's own image, and one of `pcluster build-image`."""


def python() -> Path:
    """The environment's Python, installed where it is not there yet; the test is skipped where it cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainyard"
    folder = cache / f"parallelcluster-{VERSION}-py{sys.version_info.major}.{sys.version_info.minor}"
    if not (folder / "ready").exists():
        cache.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        # setuptools 81 has no pkg_resources, which ParallelCluster imports.
        commands = [
            [sys.executable, "-m", "venv", str(folder)],
            [f"{folder}/bin/pip", "install", "--quiet", f"aws-parallelcluster=={VERSION}", "setuptools<81"],
        ]
        for argv in commands:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
            if done.returncode != 0:
                shutil.rmtree(folder, ignore_errors=True)
                pytest.skip(f"ParallelCluster cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
        (folder / "ready").touch()
    return folder / "bin/python"


@contextmanager
def account() -> Iterator[str]:
    """The endpoint of an empty account with two images of ParallelCluster's."""
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images.json"
        images.write_text(json.dumps(IMAGES))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        environment = {**os.environ, "MOTO_AMIS_PATH": str(images), "MOTO_IAM_LOAD_MANAGED_POLICIES": "true"}
        argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        with (Path(folder) / "log").open("wb") as log:
            server = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)
        try:
            end = time.monotonic() + 120
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                assert server.poll() is None and time.monotonic() < end, (Path(folder) / "log").read_text()
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait()


def judge(program: Path, order: dict[str, Any]) -> dict[str, Any]:
    """What ParallelCluster says of an order (see pcluster_judge.py)."""
    given = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"}
    given |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_REGION": "us-east-1"}
    unwanted = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "HTTP_PROXY", "http_proxy", "PYTHONPATH")
    kept = {key: value for key, value in os.environ.items() if key not in unwanted}
    with account() as endpoint:
        done = subprocess.run(
            [program, JUDGE],
            input=json.dumps(order),
            env={**kept, **given, "AWS_ENDPOINT_URL": endpoint},
            text=True,
            capture_output=True,
            timeout=600,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
