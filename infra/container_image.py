"""The container image of training jobs: its name, and its build context, made of bootstrap/.

`python -m infra.container_image STACK [--profile cuda|native] [--base IMAGE] [--folder FOLDER]` prints the facts, and
writes the context into the folder. bootstrap/container/Dockerfile says how the image is built of it.
"""

from __future__ import annotations

import argparse
import base64
import fnmatch
import hashlib
import io
import re
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from infra import user_data
from infra.clouds.aws import machine_types
from infra.config import stack_file
from infra.config.kinds import WITH_KUBERNETES
from infra.config.settings import Settings
from infra.config.values import SettingsError
from infra.errors import UsageError, prints_json

CONTAINER = user_data.BOOTSTRAP / user_data.CONTAINER
PROFILES = ("cuda", "native")
LEFT_OUT = {
    "bootstrap.sh": "container/layer.sh runs the steps: there is no boot, and no record of one",
    "seal.sh": "an image is not the disk of a machine that ran",
    "trainyard-*": "units of systemd, which no container has",
    "limits.py": "a program of these units",
    "notice.py": "likewise",
    "aws-xeon/*.py": "likewise",
    "gpus.py": "a part of the node's step gpus",
    "steps/node/*": "what a machine does as it becomes a node",
    "steps/image/15-updates": "systemd's timers, which no container has",
    "steps/image/25-driver": "the machine has NVIDIA's driver, and its container runtime mounts it",
    "steps/image/26-efa": "the machine has the kernel module; container/steps has the rest",
    "steps/image/52-nccl-tests": "mpirun starts it over SSH",
    "steps/image/54-gdrcopy": "the machine's kernel module",
    "steps/image/60-extension": "profile ipex",
    "steps/image/70-collectives": "profile ipex",
    "steps/image/85-system": "settings of sshd and systemd",
}
"""What of bootstrap/ makes no sense in a container, and why. Everything else is in the image."""
STEP_SECONDS = 3600
"""A step may take this long: torch's download at home is not that of a machine in the cloud."""
_BASE = re.compile(r"[a-z0-9][a-zA-Z0-9._:/-]*@sha256:[0-9a-f]{64}")

Files = dict[str, tuple[bytes, int]]
"""Path in the build context -> content, mode."""


def context(settings: Settings) -> Files:
    """The build context: the Dockerfile, and the folder bootstrap/ as the image gets it. Deterministic."""
    found: Files = {}
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(user_data.archive(settings)))) as scripts:
        for entry in scripts:
            opened = scripts.extractfile(entry)
            assert opened is not None, "it has files only"
            if not any(fnmatch.fnmatch(entry.name, pattern) for pattern in LEFT_OUT):
                found[f"bootstrap/{entry.name}"] = (opened.read(), entry.mode)
    for step in sorted((CONTAINER / "steps").iterdir()):
        found[f"bootstrap/steps/image/{step.name}"] = (step.read_bytes(), 0o644)
    found["bootstrap/layer.sh"] = ((CONTAINER / "layer.sh").read_bytes(), 0o755)
    found["Dockerfile"] = ((CONTAINER / "Dockerfile").read_bytes(), 0o644)
    values = {"MODE": "bake", "PROFILE": settings.profile, "COLLECTIVES": "gloo", "CLUSTER": settings.facts.node_files}
    if settings.profile == "cuda":
        values["GPU_ARCHITECTURE"] = machine_types.of(settings).gpu_architecture
    lines = [f"TRAINYARD_{key}={value}\n" for key, value in values.items()]
    found["bootstrap/container.env"] = (f"STEP_TIMEOUT={STEP_SECONDS}\n{''.join(lines)}".encode(), 0o644)
    return found


def key(files: Files, base: str) -> str:
    """8 hexadecimal digits: a hash of the build context and of the base, if that is not the Dockerfile's."""
    digest = hashlib.sha256(base.encode())
    for name, (content, mode) in sorted(files.items()):
        digest.update(f"\0{name} {mode:o} {len(content)}\0".encode() + content)
    return digest.hexdigest()[:8]


def write(files: Files, name: str, folder: Path) -> None:
    """Write the build context into an empty folder. `name` goes into the image's own record."""
    own = "bootstrap/container.env"
    content, mode = files[own]
    for path, (text, bits) in {**files, own: (content + f"TRAINYARD_IMAGE={name}\n".encode(), mode)}.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text)
        target.chmod(bits)
    for inner in folder.rglob("*"):
        if inner.is_dir():
            inner.chmod(0o755)  # they are the image's, too, whatever the umask here


def of(stack: str, profile: str = "", base: str = "") -> tuple[str, Files, Settings]:
    """(the image's name without its repository, its build context, its settings). Raises UsageError for a stack without
    Kubernetes, for a profile that no image is made of, and for a base that is not pinned."""
    settings = stack_file.settings(stack)
    if settings.cluster not in WITH_KUBERNETES:
        kinds = ", ".join(WITH_KUBERNETES)
        why = "its nodes boot golden images (fab images); container images are for a stack of"
        raise UsageError(f"stack {stack}: cluster = {settings.cluster!r}: {why} {kinds}")
    if profile and profile not in PROFILES:
        raise SettingsError("profile", profile, " or ".join(PROFILES))
    if base and not _BASE.fullmatch(base):
        raise SettingsError("base", base, "an image pinned by its digest, as docker.io/library/ubuntu@sha256:...")
    settings = replace(settings, profile=profile or settings.profile)
    files = context(settings)
    return f"{settings.profile}-{key(files, base)}", files, settings


@prints_json
def main() -> dict[str, Any]:
    """The facts of the image that the command line asks for, for JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.container_image", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("stack")
    for option in ("--profile", "--base", "--folder"):
        parser.add_argument(option, default="")
    args = parser.parse_args()
    name, files, settings = of(args.stack, args.profile, args.base)
    if args.folder:
        write(files, name, Path(args.folder))
    architecture = machine_types.of(settings).gpu_architecture if settings.profile == "cuda" else ""
    return {"name": name, "profile": settings.profile, "gpu_architecture": architecture}


if __name__ == "__main__":
    sys.exit(main())
