"""What `fab check` measures in a job of the cluster's scheduler, under Slurm and on Kubernetes alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fabfile.check import gpu_rules, launch, network_rules
from fabfile.check.launch import ProbeRun
from fabfile.check.verdict import Verdict
from fabfile.launchers.program import NODE, SLOT
from infra.inventory import SshCluster


@dataclass(frozen=True)
class Measurement:
    """What the job's ranks measure."""

    check: str
    per: str
    """How many ranks there are: one on each node, or one for each slot, which is a GPU where there are GPUs."""
    seconds: float
    """For all of it, from the first rank's first word."""
    argv: Callable[[str], list[str]]
    """A rank's command, by the node program's path where it runs."""
    judge: Callable[[SshCluster, ProbeRun], Verdict]


LINKS = Measurement("all-reduce", NODE, launch.NETWORK_S, launch.all_reduce, network_rules.network)
GPUS = Measurement("nccl", SLOT, 2 * launch.NCCL_S + launch.PAIRS_S, launch.gpu_ranks, gpu_rules.nccl)
