#!/bin/bash
# Slurm runs this as root on each node of a job that has ended, before the node is free again. It kills what step.sh would
# have killed, had nobody killed that: every step's group in which no slurmstepd runs.
top=/sys/fs/cgroup/unified
[[ -e $top/cgroup.procs ]] || top=/sys/fs/cgroup
for group in "$top"/system.slice/slurmd.service/step-*; do
    [[ -d $group ]] || continue
    living=
    while read -r pid; do
        [[ $(cat "/proc/$pid/comm" 2>/dev/null) != slurmstepd ]] || living=1
    done <"$group/cgroup.procs"
    [[ -n $living ]] || echo 1 >"$group/cgroup.kill"
done
exit 0
