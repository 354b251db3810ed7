"""Tables of clouds and kinds of cluster: facts for shared code, available without loading an SDK.

A new cloud needs a row here and a folder infra/clouds/<name>; a new kind of cluster a row and a module in
infra/clusters/.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CloudFacts:
    """Where machines come from. The texts are used in messages."""

    name: str = ""
    """Name of the folder infra/clouds/<name> and of the extra in pyproject.toml; empty: this machine."""
    title: str = ""
    packages: tuple[str, ...] = ()
    """Top-level packages of its SDK."""
    image: re.Pattern[str]
    """Form of a golden image's id."""
    image_form: str
    region: str = ""
    """An example of a region."""
    zone: str = ""
    """How its zones are written."""
    instance_type: str = ""
    """An example of a machine type."""
    base_image: str = ""
    """Regular expression for images from which golden ones can be baked."""
    base_image_form: str = ""
    offered_by: str = "region"
    """The key on which the offer of a machine type depends: zone or region."""
    node_files: str = ""
    """The folder of bootstrap/ with what this cloud's nodes run, whatever kind of cluster they are of; also the value
    of TRAINYARD_CLUSTER on a node."""


LOCAL = CloudFacts(
    image=re.compile(r"[0-9a-f]{16}"), image_form="16 hexadecimal digits; fab images", node_files="local"
)
AWS = CloudFacts(
    name="aws",
    title="AWS",
    packages=("pulumi_aws", "boto3", "botocore"),
    image=re.compile(r"ami-[0-9a-f]{8,17}"),
    image_form="ami-...",
    region="us-east-1",
    zone="an AWS zone's id such as use1-az4",
    instance_type="m7i.8xlarge",
    base_image=r"ami-[0-9a-f]{8,17}",
    base_image_form="ami-...",
    offered_by="zone",
    node_files="aws-xeon",
)
AZURE = CloudFacts(
    name="azure",
    title="Azure",
    packages=("pulumi_azure_native", "azure"),
    image=re.compile(r"/subscriptions/[^/\s]+/resourceGroups/[^/\s]+/[A-Za-z0-9._/-]+/versions/[0-9]+\.[0-9]+\.[0-9]+"),
    image_form="/subscriptions/.../versions/1.0.0",
    region="eastus",
    zone="an Azure zone's number",
    instance_type="Standard_D32s_v6",
    base_image=r"[A-Za-z0-9._-]+(:[A-Za-z0-9._-]+){3}",
    base_image_form="publisher:offer:sku:version",
    node_files="azure-xeon",
)
CLOUDS = {facts.name: facts for facts in (AWS, AZURE)}
CLUSTERS = {"local": LOCAL, "aws-xeon": AWS, "aws-gpu": AWS, "aws-slurm": AWS, "aws-eks": AWS, "azure-xeon": AZURE}
"""Kind of cluster -> where its machines come from."""
WITH_GPUS = ("aws-gpu", "aws-slurm", "aws-eks")
"""The kinds of cluster whose nodes have NVIDIA's GPUs, and so profile cuda; no other has it."""
WITH_KUBERNETES = ("aws-eks",)
"""The kinds whose inventory is a Kubernetes cluster: nobody logs in to their nodes."""
