"""The text of Slurm's configuration files, the same on every node of a stack."""

from __future__ import annotations

from collections.abc import Mapping

STATE = "/var/lib/slurm/slurmctld"
"""Where slurmctld keeps its queue, on the head."""
OWN_MEMORY_MB = 128
"""Memory of a node that its system needs and no job gets, in MiB: 90 to 110 are in use on an idle head."""
EPILOG, STEP = "/etc/slurm/epilog.sh", "/etc/slurm/step.sh"
SLURMD_OPTIONS = f"-d {STEP}"
"""slurmd starts this program in place of slurmstepd."""

_SETTINGS = f"""
AuthType=auth/munge
# A job of a node that has died can start again only when its credential has expired. The default is 120 s.
AuthInfo=cred_expire=20
SlurmUser=slurm
StateSaveLocation={STATE}
SlurmdSpoolDir=/var/lib/slurm/slurmd
ReturnToService=2
SlurmdTimeout=15
KillWait=30
MpiDefault=none

# Not proctrack/cgroup: it moves processes of other users, which control groups of version 1 allow only to the host's
# own root, and its version 2 refuses a host that has both. So {STEP} gives every step a group of its own, and
# ends that with the step.
ProctrackType=proctrack/linuxproc
Epilog={EPILOG}
PropagateResourceLimits=NONE

# No TaskPlugin: task/affinity would pin the rank of each node to the first CPU of the one machine that they share.
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=5
# A job that can never run is refused when it is submitted; by default it would wait for ever.
EnforcePartLimits=ALL

JobCompType=jobcomp/filetxt
JobCompLoc={STATE}/jobs.txt

# slurmd sees the CPUs and the memory of the machine under the nodes; what is stated below counts.
SlurmdParameters=config_overrides
"""


def slurm_conf(stack: str, nodes: Mapping[str, str], *, cpus: int, memory_mb: int) -> str:
    """slurm.conf for the nodes, name -> address, the head first; each with so many CPUs and MiB of memory."""
    head, address = next(iter(nodes.items()))
    memory = memory_mb - OWN_MEMORY_MB
    lines = [f"ClusterName={stack}", f"SlurmctldHost={head}({address})", _SETTINGS.strip()]
    lines += [f"NodeName={name} NodeAddr={at} CPUs={cpus} RealMemory={memory}" for name, at in nodes.items()]
    lines.append("PartitionName=nodes Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"
