"""A job as Kubeflow Trainer v2's TrainJob (trainer.kubeflow.org/v1alpha1): pure functions, with which a dry run prints
what is applied.

Trainer makes a JobSet of a TrainJob and the TrainingRuntime that it names, and JobSet makes an Indexed Job of
Kubernetes' own. Where it differs from a PyTorchJob:

- The first pod is the one with index 0 of a single kind of pods, so all of them get the job's secrets. Its end with
  code 0 ends the Job (successPolicy); the others are then ended, too.
- A pod learns its number from a label, here as RANK, which the training operator sets by itself.
- A code up to 127 is for good, and ends the Job; after a higher one, or a disruption, there is a new pod with the same
  number and another name (podFailurePolicy): after 10 s at first, then later and later. The Job's limit of 6 such
  failures is lifted.
- With a podFailurePolicy a pod is replaced only when its phase is Failed, and it stays until the Job has counted it. So
  the pod of a dead machine is marked as failed before it is deleted (node/kubernetes/api.py).
- After KEPT_DAYS JobSet deletes the JobSet. The TrainJob stays, with what it owns, until somebody deletes it.
- Ends: JobSet's Completed and Failed are conditions of the TrainJob, Complete and Failed; none says that it runs.

https://github.com/kubeflow/trainer/blob/v2.3.0/pkg/runtime/framework/plugins/jobset/jobset.go
https://github.com/kubeflow/trainer/blob/v2.3.0/pkg/webhooks/trainingruntime_webhook.go
https://github.com/kubernetes-sigs/jobset/blob/v0.12.0/pkg/webhooks/jobset_webhook.go
https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
"""

from __future__ import annotations

from typing import Any

from fabfile.backends.kubernetes import pod_template
from fabfile.backends.kubernetes.pod_template import KEPT_DAYS, PodJob
from fabfile.backends.kubernetes.pods import TRAINER_NODE
from infra.inventory import KubeCluster

Object = dict[str, Any]

VERSION = "trainer.kubeflow.org/v1alpha1"
_STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
"""Label of the pods of which there are to be `numNodes`."""
_INDEX = "batch.kubernetes.io/job-completion-index"
_FOR_GOOD = range(1, 128)
"""Exit codes of a pod that is not to be made again: see node/kubernetes/pod.py."""
_NO_LIMIT = 2**31 - 1


def rendered(cluster: KubeCluster, job: PodJob) -> tuple[Object, Object]:
    """The TrainingRuntime, which has to be there first, and the TrainJob."""
    kept = {"ttlSecondsAfterFinished": KEPT_DAYS * 86400}
    pods = {"name": TRAINER_NODE, "template": {"metadata": {"labels": _STEP}, "spec": _indexed_job(cluster, job)}}
    runtime = {
        "apiVersion": VERSION,
        "kind": "TrainingRuntime",
        "metadata": _metadata(cluster, job),
        "spec": {
            "mlPolicy": {"numNodes": job.nodes},  # no `torch`, which sets what torchrun needs
            "template": {"spec": {**kept, "replicatedJobs": [pods]}},
        },
    }
    reference = {"apiGroup": VERSION.partition("/")[0], "kind": "TrainingRuntime", "name": job.id}
    return runtime, {
        "apiVersion": VERSION,
        "kind": "TrainJob",
        "metadata": _metadata(cluster, job),
        "spec": {"runtimeRef": reference, "trainer": {"numNodes": job.nodes}},
    }


def _metadata(cluster: KubeCluster, job: PodJob) -> Object:
    return {"name": job.id, "namespace": cluster.namespace, "labels": pod_template.labels(cluster, job.id)}


def _indexed_job(cluster: KubeCluster, job: PodJob) -> Object:
    """The Job of Kubernetes; Trainer adds how many pods it has."""
    failures = [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [*_FOR_GOOD]}},
        {"action": "Ignore", "onExitCodes": {"operator": "NotIn", "values": [*_FOR_GOOD]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    template = pod_template.template(cluster, job, TRAINER_NODE, gets_secrets=True)
    (container,) = template["spec"]["containers"]
    number = {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{_INDEX}']"}}}
    container["env"].append(number)
    template["spec"]["restartPolicy"] = "Never"  # a podFailurePolicy wants it
    return {
        "completionMode": "Indexed",
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "podFailurePolicy": {"rules": failures},
        "backoffLimit": _NO_LIMIT,
        "template": template,
    }
