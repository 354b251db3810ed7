"""Jobs and single ranks on an NVIDIA GPU, or on the processor in its place: each in processes of its own.

python tests/support/on_device.py                   what torch says of the GPU, as JSON
python tests/support/on_device.py cuda | cpu        the collectives of training.parallel.ranks, in a group of one
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gloo_ranks import free_port

ROOT = Path(__file__).resolve().parents[2]


def environment(device: str, **more: str) -> dict[str, str]:
    """Of a process that sees the first GPU, or none. The tests' own processes see none: tests/conftest.py."""
    visible = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    hidden = {} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    return {**visible, **hidden, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more}


def _python(device: str, *arguments: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment(device, **more), capture_output=True, text=True, timeout=240)


def train(device: str, job: Path, run: Path, overrides: Sequence[str] = (), *, ranks: int = 1, code: int = 0) -> str:
    """Train a job to its end with the very program of a node; several ranks by torchrun, each on a GPU of its own.
    Returns the output."""
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    done = _python(device, *start, "-m", "training.train", job, *overrides, RUN_DIR=str(run))
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def seen_by_torch() -> dict[str, Any]:
    """`gpus`, how many torch can use; `capability` and `name` of the first, or `why` there is none."""
    done = _python("cuda", Path(__file__))
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def collectives(device: str) -> dict[str, Any]:
    """What `_collectives` has found."""
    done = _python(device, Path(__file__), device, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measured(output: str) -> tuple[str, dict[str, float]]:
    """The precision that a job has chosen, and the milliseconds of one block in each."""
    found = re.search(r"^precision (\w+) \(measured on one block, slowest rank: (.*?)\)", output, re.M)
    assert found, output
    times = [each.split() for each in found[2].split(", ")]
    return found[1], {name: float(milliseconds) for name, milliseconds, _ in times}


def _seen() -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            return {"gpus": 0, "why": f"torch {torch.__version__}: {str(error).splitlines()[0]}"}
        return {"gpus": 0, "why": f"torch {torch.__version__} sees none"}
    first, name = torch.cuda.get_device_capability(0), torch.cuda.get_device_name(0)
    return {"gpus": torch.cuda.device_count(), "capability": first, "name": name}


def _collectives(device: str) -> dict[str, Any]:
    """Every type that the ranks exchange, through the backend of this device, and its way there and back. In a group of
    one, which a job of one rank does without: so these are told that they are two."""
    import torch
    import torch.distributed as dist

    from training.parallel import ranks as module

    alone = module.join(60)
    assert alone.device.type == device and not dist.is_initialized()
    module._meet(alone)  # the group, as of several ranks
    assert alone.peers is not None
    alone.peers.stop()
    alone.size, alone.nodes = 2, [alone.node]
    before = dist.all_reduce
    calls: list[str] = []

    def counted(values: Any, *arguments: Any, **more: Any) -> Any:
        calls.append(values.device.type)
        return before(values, *arguments, **more)

    dist.all_reduce = counted
    sums = {}
    for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8):
        values = torch.arange(5).to(kind)
        results = alone.sum(values), alone.maximum(values)
        sums[str(kind)] = all(each.device.type == "cpu" and torch.equal(each, values) for each in results)
    there = torch.ones(3)
    alone.broadcast(there, 0)
    found = {"backend": dist.get_backend(), "on": sorted(set(calls)), "calls": len(calls), "equal": sums}
    found["broadcast"] = there.tolist()
    alone.close()
    return {**found, "left": not dist.is_initialized()}


if __name__ == "__main__":
    print(json.dumps(_collectives(sys.argv[1]) if len(sys.argv) > 1 else _seen()), flush=True)
    os._exit(0)  # as training.train ends: gloo's threads may still hold tensors
