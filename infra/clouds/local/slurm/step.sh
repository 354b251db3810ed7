#!/bin/bash
# slurmd starts this in place of slurmstepd, for each step of a job. It makes a control group for the step, leaves a process
# behind that kills the whole group when slurmstepd has ended or was killed, and becomes slurmstepd in that group. So nothing
# of a step outlives it: no child that has detached itself, no rank whose slurmstepd is dead.
set -eu
top=/sys/fs/cgroup/unified
[[ -e $top/cgroup.procs ]] || top=/sys/fs/cgroup
group=$top$(sed -n 's/^0:://p' /proc/self/cgroup)/step-$$
mkdir "$group"
# Started by a process that has ended: it is no child of slurmstepd, which would kill it as one of the step's.
(
    {
        tail --pid=$$ --sleep-interval=0.3 --follow /dev/null
        echo 1 >"$group/cgroup.kill"
        until rmdir "$group"; do sleep 0.1; done
    } </dev/null >/dev/null 2>&1 &
)
echo $$ >"$group/cgroup.procs"
exec /usr/sbin/slurmstepd "$@"
