"""What `fab check --account` asks for aws-eks beside the rest: are the pinned versions to be had?"""

from __future__ import annotations

from infra import training_operator
from infra.clouds.aws import api, eks
from infra.clouds.aws.findings import Unfit, judged
from infra.clouds.aws.names import region
from infra.config.settings import Settings

ACTIONS = (
    *("eks:CreateCluster", "eks:CreateNodegroup", "eks:CreateAddon", "eks:CreateAccessEntry", "eks:DeleteCluster"),
    *("eks:CreatePodIdentityAssociation", "kms:CreateKey", "kms:CreateGrant", "ecr:CreateRepository"),
    *("fsx:CreateFileSystem", "fsx:CreateDataRepositoryAssociation", "iam:CreateServiceLinkedRole"),
    *("autoscaling:PutScheduledUpdateGroupAction", "elasticloadbalancing:DescribeLoadBalancers"),
)
"""A sample of the actions that `up` and `destroy` need with EKS."""
_VERSIONS = "infra/clouds/aws/eks.py"


@judged("versions", "aws eks describe-addon-versions --kubernetes-version " + eks.VERSION + " --region {region}")
def versions(settings: Settings) -> str:
    """Whether EKS has every add-on in its pinned version for the pinned Kubernetes."""
    listed = api.pages(
        api.client("eks", region(settings)), "describe_addon_versions", "addons", kubernetesVersion=eks.VERSION
    )
    there = {item["addonName"]: [entry["addonVersion"] for entry in item["addonVersions"]] for item in listed}
    if not there:
        raise Unfit(f"EKS has no Kubernetes {eks.VERSION} in {region(settings)}", f"another VERSION in {_VERSIONS}")
    for name, wanted in eks.ADDONS.items():
        if wanted not in there.get(name, []):
            newest = (there.get(name) or ["none"])[0]
            raise Unfit(f"EKS has no {name} {wanted} for Kubernetes {eks.VERSION}; it has {newest}", _VERSIONS)
    return f"Kubernetes {eks.VERSION} with its {len(eks.ADDONS)} add-ons"


@judged("operator", f"curl -fsSLO {training_operator.DEFINITION_URL}")
def operator(_settings: Settings) -> str:
    """Whether the definition of PyTorchJob, which `up` fetches at its end, can be had from here."""
    training_operator.definition()
    return f"the training operator's definition of PyTorchJob, {training_operator.VERSION}"
