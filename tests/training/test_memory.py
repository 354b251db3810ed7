"""The sum that decides between whole models and shards, and where the memory of a node is read."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from training.keys import JobError
from training.models.gpt2 import GPT, Shape
from training.parallel import memory
from training.parallel.sums import Size, plan, size_of
from training.sections import TrainSection

BILLION = 10**9
SEVEN = Size(7 * BILLION, 7 * BILLION)
AUTO = TrainSection()


def test_the_sum_of_7b_on_8_gpus_of_40_gb() -> None:
    made = plan(AUTO, SEVEN, ranks=8, memory=40 * BILLION, on_gpu=True)
    assert made.line("bf16", "adamw") == "7B in bf16 with AdamW needs 112 GB; 8 GPUs of 40 GB: fsdp, 14 GB each"
    assert not made.holds_gradients, "28 GB of whole gradients beside 14 GB"
    assert plan(AUTO, SEVEN, ranks=8, memory=80 * BILLION, on_gpu=True).holds_gradients


@pytest.mark.parametrize(
    ("parameters", "gigabytes", "ranks", "expected"),
    [(7e9, 161, 8, "ddp"), (7e9, 159, 8, "fsdp"), (124e6, 16, 2, "ddp"), (124e6, 2, 3, "fsdp"), (7e9, 1000, 1, "ddp")],
)
def test_auto_takes_what_fits_whole(parameters: float, gigabytes: int, ranks: int, expected: str) -> None:
    size = Size(int(parameters), int(parameters))
    assert plan(AUTO, size, ranks=ranks, memory=gigabytes * BILLION, on_gpu=True).parallel == expected


def test_the_bytes_are_those_of_the_real_tensors() -> None:
    """Counted from a model, its gradients and AdamW's and Muon's moments; a step count of 4 bytes a tensor aside."""
    from training import optimizer as optimizers

    for name in ("adamw", "muon"):
        model = GPT(Shape(n_layer=2, n_head=2, n_embd=32, block_size=16, vocab_size=67))
        optimizer = optimizers.build(model, replace(AUTO, optimizer=name))
        model(*model.batch(torch.zeros(1, 17, dtype=torch.int64), [0])).backward()
        optimizer.step()
        kept = list(model.parameters()) + [p.grad for p in model.parameters() if p.grad is not None]
        kept += [value for state in optimizer.state.values() for value in state.values() if value.dim()]
        bytes_kept = sum(tensor.untyped_storage().nbytes() for tensor in kept)
        assert size_of("gpt2", model.shape, name).needed == bytes_kept, name
        assert memory.size_of(model, name).needed == bytes_kept, name


def test_what_cannot_be_is_one_line() -> None:
    fsdp = replace(AUTO, parallel="fsdp")
    for train, ranks, gigabytes, expected in (
        (replace(fsdp, optimizer="muon"), 8, 80, "train.optimizer = muon with fsdp: Muon needs whole matrices"),
        (replace(fsdp, compile="true"), 8, 80, "train.compile = true with fsdp"),
        (replace(AUTO, replicas=3), 8, 80, "train.replicas = 3; allowed for 8 ranks: a divisor of 8"),
        (
            AUTO,
            2,
            40,
            "needs 112 GB; 2 GPUs of 40 GB: fsdp, 56 GB each, which is more than it has; allowed: at least 3",
        ),
        (replace(AUTO, parallel="ddp"), 8, 80, "allowed: auto or fsdp, on more than one GPU"),
    ):
        with pytest.raises(JobError) as refused:
            plan(train, SEVEN, ranks=ranks, memory=gigabytes * BILLION, on_gpu=True)
        assert expected in str(refused.value) and "\n" not in str(refused.value)
    told = plan(AUTO, SEVEN, ranks=2, memory=40 * BILLION, on_gpu=False)
    assert told.line("fp32", "adamw").endswith("2 ranks of 40 GB: fsdp, 56 GB each, which is more than it has")


def test_replicas_hold_the_model_once_each() -> None:
    made = plan(replace(AUTO, replicas=2), SEVEN, ranks=16, memory=40 * BILLION, on_gpu=True)
    assert (made.parallel, made.shards) == ("fsdp", 8)
    assert made.line("bf16", "adamw").endswith("16 GPUs of 40 GB: fsdp, 14 GB each, in 2 replicas of 8 shards")


def control_group(root: Path, lines: str, limits: dict[str, str]) -> int:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(lines)
    for name, text in limits.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return memory.of_node(root)


def test_the_limit_is_that_of_any_control_group_above(tmp_path: Path) -> None:
    whole = memory.of_node(tmp_path / "none")
    assert whole > 2**28
    two = {"sys/fs/cgroup/a/memory.max": "268000000\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}
    assert control_group(tmp_path / "v2", "0::/a/b\n", two) == 268000000
    one = {"sys/fs/cgroup/memory/memory.limit_in_bytes": "267000000\n"}
    assert control_group(tmp_path / "v1", "4:cpu:/x\n3:memory:/x/y\n0::/\n", one) == 267000000
    own = {"sys/fs/cgroup/memory.max": "266000000\n"}
    assert control_group(tmp_path / "pod-v2", "0::/\n", own) == 266000000
    stat = "cache 8192\nhierarchical_memory_limit {}\nhierarchical_memsw_limit 9223372036854771712\n"
    pod = "4:memory:/kubepods/burstable/pod1/c2\n0::/kubepods/burstable/pod1/c2\n"  # names that it has not mounted
    none = {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}
    machines = {**none, "sys/fs/cgroup/memory/memory.stat": stat.format(265000000)}
    assert control_group(tmp_path / "pod-v1", pod, machines) == 265000000, "of the machine that the pod is on"
    both = dict(machines)
    both["sys/fs/cgroup/memory/memory.limit_in_bytes"] = "264000000\n"
    assert control_group(tmp_path / "both", pod, both) == 264000000
    both["sys/fs/cgroup/memory/memory.limit_in_bytes"] = "266000000\n"
    assert control_group(tmp_path / "less-above", pod, both) == 265000000
    none |= {"sys/fs/cgroup/memory/memory.stat": stat.format("9223372036854771712")}
    assert control_group(tmp_path / "none", "3:memory:/\n", none) == whole


@pytest.mark.acceptance
def test_70b_is_planned_in_little_memory() -> None:
    """What a job does before the first step: an outline, the sum, and the model without its values."""
    code = """
import resource, torch
from training.models import architecture
from training.models.sharded_init import ShardedInit
from training.parallel import sums
from training.parallel.shard import Shard
from training.sections import TrainSection
cls = architecture("llama")
sizes = dict(n_layer=80, n_head=64, n_kv_head=8, n_embd=8192, intermediate_size=28672)
shape = cls.shape_class(**sizes, block_size=4096, vocab_size=32000)
with torch.device("meta"):
    outline = cls(shape)
size = sums.size_of("llama", outline.shape, "adamw")
plan = sums.plan(TrainSection(), size, ranks=64, memory=80 * 10**9, on_gpu=True)
with ShardedInit(Shard(3, 64), keep=False):
    model = cls(shape)
assert all(p.is_meta for p in model.parameters())
print(plan.line("bf16", "adamw"))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    line, megabytes = done.stdout.split("\n")[:2]
    assert done.returncode == 0, done.stderr
    assert line == "69B in bf16 with AdamW needs 1104 GB; 64 GPUs of 80 GB: fsdp, 17 GB each"
    assert int(megabytes) < 2048
