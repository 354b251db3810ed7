"""The sum of what a job needs and what its ranks have, before it starts: in its plan, in a dry run, as a refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fab_command import fab
from invoke.exceptions import Exit
from memory_backend import MemoryBackend

from fabfile.backends.base import JobNode
from fabfile.backends.kubernetes.backend import KubernetesBackend
from fabfile.backends.slurm.backend import SlurmBackend
from fabfile.backends.ssh.backend import SshBackend
from fabfile.backends.submission import Submission
from fabfile.job_file import Ranks, resolve
from infra.inventory import KubeCluster, Node, Queue, SshCluster, from_json, to_json

GIB = 2**30
LLAMA = "6.74B in bf16 with AdamW needs 108 GB; 8 GPUs of 43 GB: fsdp, 13 GB each"
GPT2 = "124M in fp32 or bf16 with AdamW needs 2 GB; 3 ranks of 4.3 GB: ddp, 2 GB each"
A100 = {"gpus": 8, "slots": 8, "memory_gb": 1152.0, "gpu_memory_gb": 40.0}
SSH = SshCluster(name="test", nodes=(Node(name="node1", private_ip="10.0.0.1", role="head", **A100),))  # type: ignore[arg-type]
HEAD = Node(name="head", private_ip="10.0.0.1", role="head")
QUEUE = Queue(name="gpu", nodes=1, node_prefix="gpu", **A100)  # type: ignore[arg-type]
SLURM = SshCluster(name="test", launcher="slurm", nodes=(HEAD,), shared_dir="/fsx", queue=QUEUE)
KUBE = KubeCluster(
    name="eks", region="eu-west-1", namespace="ml", image="i:1", workers=1, gpus_per_worker=8, gpu_memory_gb=40.0,
    memory_gb=1152.0, shared_dir="/fsx", shared_claim="fsx",
)  # fmt: skip


@pytest.mark.parametrize("backend", [SshBackend(SSH), SlurmBackend(SLURM), KubernetesBackend(KUBE)])
def test_a_dry_run_shows_it_on_every_backend(backend: SshBackend) -> None:
    job = resolve("llama-2-7b-c4", ["data.path=/fsx/c4", "train.precision=bf16"], Ranks.on(backend.nodes()))
    assert job.memory == LLAMA
    assert f"\n# {LLAMA}\n" in backend.plan(Submission(job=job, nodes=1))


def test_a_rank_has_its_gpu_or_its_share_of_the_machine() -> None:
    assert [JobNode.of(node, 0).rank_memory for node in SSH.nodes] == [40 * GIB]
    xeon = replace(SSH.head, gpus=0, slots=2, memory_gb=3.0)
    assert JobNode.of(xeon, 0) == JobNode("node1", 2, 0, 3 * GIB // 2)
    less = replace(xeon, slots=1, memory_gb=1.0)
    assert Ranks.on([JobNode.of(xeon, 0), JobNode.of(less, 0)]) == Ranks(3, GIB)


@pytest.mark.parametrize("cluster", [SSH, SLURM, KUBE])
def test_an_inventory_keeps_the_gpus_memory_and_older_ones_know_none(cluster: SshCluster | KubeCluster) -> None:
    assert from_json(to_json(cluster)) == cluster and '"gpu_memory_gb": 40.0' in to_json(cluster)
    if isinstance(cluster, KubeCluster):
        assert "gpu_memory_gb" not in to_json(replace(cluster, gpu_memory_gb=0.0))
        return
    queue = cluster.queue and replace(cluster.queue, gpu_memory_gb=0.0)
    nodes = tuple(replace(node, gpu_memory_gb=0.0) for node in cluster.nodes)
    assert "gpu_memory_gb" not in to_json(replace(cluster, nodes=nodes, queue=queue))


def test_what_is_not_known_is_not_said() -> None:
    assert resolve("llama-2-7b-c4", (), Ranks(8, 0, on_gpus=True)).memory == ""
    assert resolve("demo", (), Ranks(3, 4 * GIB)).memory == "", "its vocabulary is its token set's"


def test_gpus_that_have_too_little_are_refused_before_the_job_waits_for_them() -> None:
    with pytest.raises(
        Exit, match=r"2 GPUs of 43 GB: fsdp, 54 GB each, which is more than it has; allowed: at"
    ) as error:
        resolve("llama-2-7b-c4", (), Ranks(2, 40 * GIB, on_gpus=True))
    assert error.value.code == 2


def test_a_job_says_it_before_it_starts(backend: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    backend.rank_memory = 4 * GIB
    said: list[str] = []
    backend.on = lambda method: said.append(f"{method}: {capsys.readouterr().out.strip()}")
    assert fab("train", "gpt2-124m-openwebtext", "--detach") == 0
    assert f"prepare: {GPT2}" in said
