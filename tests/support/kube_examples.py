"""Two clusters on Kubernetes, one with GPUs and one without, and a job."""

from __future__ import annotations

from fabfile.backends.kubernetes.pod_template import PodJob
from infra.inventory import KubeCluster

GPUS = KubeCluster(
    name="llama",
    cluster_name="yard",
    region="eu-west-1",
    authentication="eks",
    endpoint="https://api",
    certificate_authority="LS0t",
    namespace="trainyard",
    service_account="trainer",
    image="repo/train@sha256:0123",
    workers=2,
    gpus_per_worker=8,
    gpu_architecture="sm_80",
    efa_per_worker=4,
    cores_per_worker=48,
    shared_dir="/fsx",
    shared_claim="fsx",
    hourly_usd=44.0,
)
CPUS = KubeCluster(
    name="local",
    namespace="trainyard",
    image="trainyard:1",
    workers=3,
    gpus_per_worker=0,
    shared_dir="/fsx",
    shared_claim="fsx",
    software="/usr,/opt/trainyard/",
)
JOB = PodJob(id="demo-1", nodes=2, run_dir="/fsx/runs/demo-1", program="/fsx/.trainyard/code/abc/launch")
