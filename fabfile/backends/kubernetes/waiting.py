"""Jobs that wait for machines side by side: which of them may never have machines at once, and what each waits for.

Kubernetes places each pod by itself. Two jobs that wait could thus each get some of their machines and wait for ever
for those that the other one has. Each of n pods can be stuck with n - 1 machines at most: if these are together fewer
than there are machines, one of the jobs has all of its own. Where they are not, a new job's pods are kept from being
placed while others' are: by a rule against pods of those jobs in all the cluster, which the scheduler applies both
ways. (Gang scheduling of Kubernetes' own is alpha in 1.35.) Two jobs that are submitted in the same second, or machines
that are lost later, can still block each other; `fab jobs` then says so of both, and `fab stop` of one lets the other
run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from fabfile.backends.kubernetes import pods, reasons

Object = dict[str, Any]

EVERYWHERE = "kubernetes.io/os"
"""A label with which kubelets say that they are Linux: so the whole cluster is one place by it."""
_ANTI_AFFINITY = re.compile(r"node\(s\) didn't (match pod|satisfy existing pods) anti-affinity rules")
"""What the scheduler says of machines that other jobs have, or that a job may not have beside them.
https://github.com/kubernetes/kubernetes/blob/v1.34.0/pkg/scheduler/framework/plugins/interpodaffinity/filtering.go"""


def never_beside(wanted: int, machines: int, waiting: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """The jobs beside which a new one of so many pods may not have machines, the newest ones first. `waiting`: the jobs
    that have not got all of theirs, oldest first, each with its number of pods."""
    stuck = wanted - 1 + sum(count - 1 for _, count in waiting)
    found = []
    for job, count in reversed(waiting):
        if wanted == 1 or stuck < machines:
            break
        if count > 1:  # one pod is not stuck with a part
            found.append(job)
            stuck -= count - 1
    return tuple(found)


def rule(jobs: Iterable[str]) -> Object:
    """For a pod's podAntiAffinity: it is not placed while a pod of these jobs is."""
    expression = {"key": pods.JOB, "operator": "In", "values": list(jobs)}
    return {"labelSelector": {"matchExpressions": [expression]}, "topologyKey": EVERYWHERE}


def placed(own: Iterable[Object]) -> Counter[str]:
    """How many machines each job has, by its pods."""
    return Counter(
        str(pod["metadata"]["labels"][pods.JOB]) for pod in own if reasons.machine(pod) and reasons.is_alive(pod)
    )


def said(why: str, job: str, own: Iterable[Object]) -> str:
    """The scheduler's reason why a job waits, with the jobs that have the machines in place of the rule's name."""
    others = ", ".join(f"{name} ({count})" for name, count in sorted(placed(own).items()) if name != job)
    return _ANTI_AFFINITY.sub(f"busy with {others}", why) if others else why
