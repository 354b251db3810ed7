"""torch_build.py ARCHITECTURE [VERSIONS_FILE]: is torch built for these GPUs? Adds its build to the record of versions.

Needs no GPU. Prints why not, and ends with exit code 1.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import torch


def number(architecture: str) -> tuple[int, int]:
    """(major, minor) of sm_86: (8, 6)."""
    found = re.fullmatch(r"sm_(\d+)(\d)[af]?", architecture)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def serves(built: list[str], wanted: str) -> bool:
    """Whether a GPU can run a build for these: code for 8.0 runs on 8.6, but not on 9.0, nor the other way round."""
    major, minor = number(wanted)
    return any(m == major and n <= minor for m, n in map(number, built))


def architectures() -> list[str]:
    """What torch has code for. get_arch_list() itself is empty on a machine without a GPU."""
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
    return (flags or "").split()


def versions(built: list[str]) -> dict[str, str]:
    """For the image's record."""
    packages = {each.metadata["Name"]: each.version for each in metadata.distributions()}
    found = {name: version for name, version in packages.items() if name.startswith("nvidia-nccl-")}
    ask = ["modinfo", "--field", "version", "nvidia"]
    driver = subprocess.run(ask, capture_output=True, text=True).stdout.strip() if shutil.which("modinfo") else ""
    efa = Path(os.environ.get("TRAINYARD_PREFIX") or "/", "opt/amazon/efa_installed_packages")
    installer = re.search(r"installer version: *(\S+)", efa.read_text()) if efa.exists() else None
    return {
        "cuda": torch.version.cuda or "none",
        "torch architectures": " ".join(built),
        "nccl": next(iter(found.values()), "none"),
        "nvidia driver": driver or "none",
        "efa installer": installer[1] if installer else "none",
    }


def main() -> int:
    """The exit code: 1 if torch has no code for the architecture, and then nothing is recorded."""
    wanted, *file = sys.argv[1:]
    built = architectures()
    if not serves(built, wanted):
        what = f"built for {' '.join(built)}" if built else "built without CUDA"
        print(f"torch {torch.__version__} is {what}: nothing of it runs on {wanted}")
        return 1
    if file:
        path = Path(file[0])
        path.write_text(json.dumps(json.loads(path.read_text()) | versions(built)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
