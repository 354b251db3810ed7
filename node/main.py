"""The commands of the program that runs on nodes: `python3 ZIP COMMAND [ARGUMENT ...]`.

status, trust, top                   for `fab status`, `fab wait` and `fab top`
install                              the training package, for every verb of a job
trainer                              a module of that package, for `fab data`, `fab sample` and the like
workdir, requirements                a program's working directory and its packages, before its job is created
workdir-changes                      what a program has written into it, for `fab fetch`
workdir-give                         the same as an archive, for the other nodes of its job
create, job, jobs, logs, run-data    a job's verbs and `fab report`, on the head
manage                               what a managed job's manager asks, on the head
slurm-stop, slurm-jobs               a job's verbs where Slurm runs the jobs, on the head
kube-over                            the same where Kubernetes does, in the head pod
supervise, aftermath                 a job's service, on the head; with Slurm on the job's first node
pod                                  everything in a pod of a job on Kubernetes
keep, rank, program-rank, sweep      a job's part on each of its nodes
facts, peers, launch, slurm-launch, probe-rank, allreduce, nccl, gpu-ranks    probes, for `fab check`
"""

from __future__ import annotations

import importlib
import sys

COMMANDS = {
    "status": "node.status",
    "trust": "node.ssh_trust",
    "top": "node.top",
    "install": "node.install",
    "trainer": "node.trainer",
    "run-data": "node.run_data",
    "facts": "node.probes.facts",
    "peers": "node.probes.peers",
    "launch": "node.probes.launch",
    "slurm-launch": "node.probes.slurm_launch",
    "allreduce": "node.probes.allreduce",
    "gpu-ranks": "node.probes.gpu_ranks",
    "nccl": "node.probes.nccl",
    "workdir": "node.workdir.receive",
    "workdir-changes": "node.workdir.changes",
    "workdir-give": "node.job.program_files:give",
    "requirements": "node.requirements",
    "create": "node.job.submit",
    "job": "node.job.job_table:show",
    "jobs": "node.job.job_table",
    "logs": "node.job.logs",
    "manage": "node.job.managed",
    "slurm-stop": "node.slurm.submission:stop",
    "slurm-jobs": "node.slurm.others",
    "kube-over": "node.kubernetes.records",
    "pod": "node.kubernetes.pod",
    "supervise": "node.job.supervisor",
    "aftermath": "node.job.aftermath",
    "keep": "node.job.keeper",
    "rank": "node.job.rank_wrapper",
    "program-rank": "node.job.program_rank",
    "probe-rank": "node.job.rank_wrapper:probe",
    "sweep": "node.job.cleanup",
}
"""Command -> module, and the function in it where that is not `main`: from arguments to exit code."""


def main(argv: list[str]) -> int:
    """Run one command and return its exit code. Only that command's module is imported: a node may start sixteen rank
    wrappers at once."""
    module, _, function = COMMANDS[argv[0]].partition(":")
    code = getattr(importlib.import_module(module), function or "main")(argv[1:])
    return int(code or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
