"""verify.py VERSIONS_FILE: one of two ranks under mpirun. Imports what training imports and trains one step.

It runs in the environment of a rank (runtime.env): what fails here would fail in the first job.
"""

import importlib
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

PACKAGES = {name: name for name in ("torch", "accelerate", "tiktoken", "gigatoken", "numpy")} | {"impi": "impi-rt"}
IPEX = {"ipex": "intel-extension-for-pytorch", "intel_openmp": "intel-openmp"}
CCL = {"oneccl_bind_pt": "oneccl-bind-pt"}
IMPORTS = {  # by profile, collectives or cluster
    "ipex": ["intel_extension_for_pytorch"],
    "ccl": ["oneccl_bindings_for_pytorch"],
    "aws-xeon": ["s3fs"],
    "azure-xeon": ["adlfs", "azure.identity.aio"],
}
# What only some jobs import, and takes seconds to compile: streamed text, vocabularies, shards, torchrun.
BIG = ["datasets", "tokenizers", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.run"]
CLUSTER = os.environ.get("TRAINYARD_CLUSTER", "")
PROFILE, COLLECTIVES = os.environ["TRAINYARD_PROFILE"], os.environ["TRAINYARD_COLLECTIVES"]


def preloaded() -> None:
    """Check that every preloaded library is mapped: the loader only warns of one that it cannot find."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    for library in os.environ["LD_PRELOAD"].split(":"):
        if str(Path(library).resolve()) not in maps:
            raise SystemExit(f"{library} is in LD_PRELOAD, but was not loaded")


def train_one_step() -> float:
    """One step of data parallel training; returns the sum of (rank + 1) over the ranks.

    Imports what jobs import, as root, to store its bytecode: a job's user cannot, and would compile it at each start.
    """
    rank, size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
    torch, dist, parallel = map(importlib.import_module, ("torch", "torch.distributed", "torch.nn.parallel"))
    more = [name for key in (PROFILE, COLLECTIVES, CLUSTER) for name in IMPORTS.get(key, [])]
    for name in ("accelerate", "tiktoken", "gigatoken", "safetensors.torch", *more):
        importlib.import_module(name)
    dist.init_process_group(COLLECTIVES, init_method=os.environ["VERIFY_RENDEZVOUS"], rank=rank, world_size=size)
    model = parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if rank == 0:
        for name in BIG:
            importlib.import_module(name)
        # train.compile needs a C++ compiler and Python's headers
        torch.compile(torch.nn.functional.gelu)(torch.ones(8))
    total = torch.full((1,), float(rank + 1))
    dist.all_reduce(total)
    dist.destroy_process_group()
    return float(total.item())


def debian_version(pattern: str) -> str:
    """The version of the first installed package whose name fits a pattern of the shell; empty: none."""
    command = ["dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Version}\n", pattern]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    return next((line.split()[1] for line in lines if line.startswith("ii")), "")


def versions() -> dict[str, str]:
    """The version of all that jobs use, by its name in the record. PackageNotFoundError if a wheel is missing."""
    wanted = PACKAGES | (IPEX if PROFILE == "ipex" else {}) | (CCL if COLLECTIVES == "ccl" else {})
    found = {"python": platform.python_version()}
    found |= {name: metadata.version(package) for name, package in wanted.items()}
    return found | {"tcmalloc": debian_version("libtcmalloc-minimal4*"), "cloud-init": debian_version("cloud-init")}


def main() -> None:
    """SystemExit for a library that was not loaded or a wrong sum; rank 0 writes the versions."""
    preloaded()
    total = train_one_step()
    if total != 3:  # ranks 0 and 1 gave 1 and 2
        raise SystemExit(f"all_reduce over {COLLECTIVES} gave {total} instead of 3")
    if os.environ["PMI_RANK"] == "0":
        found = versions()
        print(", ".join(f"{name} {version}" for name, version in found.items()))
        Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
    # Skip the interpreter's shutdown: after DDP over gloo a worker thread may still hold a tensor, and every second run
    # aborted there (pytorch/pytorch#179291). All checks have passed by now.
    sys.stdout.flush()
    os._exit(0)
