"""What AWS's provider would answer the program: the recorder's kind for aws-xeon."""

from __future__ import annotations

from typing import Any

from program_recorder import HOST_KEY, STACK_ID, Kind
from pulumi.runtime.mocks import MockCallArgs, MockResourceArgs

ACCOUNT = "123456789012"
ZONES = ["use1-az1", "use1-az2", "use1-az4", "use1-az5", "use1-az6"]
"""Of us-east-1, those that offer the type."""
UBUNTU = "ami-0aaaaaaaaaaaaaaaa"
OURS = "ami-0bbbbbbbbbbbbbbbb"
"""An image that was baked before, from this key:"""
BAKED_FROM = "0123456789abcdef"
BUILT = {"parallelcluster:version": "3.16.1", "parallelcluster:os": "ubuntu2404"}
"""Tags of the same image, as if ParallelCluster had built it: aws-slurm boots such a one."""
FILE_SYSTEM = "fs-0123456789abcdef0"
STACK_OUTPUTS = {
    "ServiceToken": "arn:aws:lambda:us-east-1:123456789012:function:pcluster-cfn-0123",
    **{"PublicIp": "198.51.100.1", "PrivateIp": "10.0.0.20", "Instance": "i-0123456789abcdef0"},
}
"""Of CloudFormation's stacks: the provider's, and the wrapper's around a ParallelCluster."""
EKS = {
    "endpoint": "https://0123456789ABCDEF.gr7.us-east-1.eks.amazonaws.com",
    "certificateAuthority": {"data": "LS0tLS1CRUdJTg=="},
    "vpcConfig": {"clusterSecurityGroupId": "sg-0123456789abcdef0"},
}
"""What EKS adds to a cluster."""
KEY = f"arn:aws:kms:us-east-1:{ACCOUNT}:key/01234567-89ab-cdef-0123-456789abcdef"
FOREIGN = "ami-0cccccccccccccccc"
"""An image of the account's that is not ours."""
ELASTIC = "203.0.113.99"
"""Every Elastic IP."""
RESERVATION = "cr-0123456789abcdef0"
BUCKET = f"trainyard-aws-xeon-{STACK_ID}-use1"


class Amazon(Kind):
    """`kept`: whether the bucket of an earlier cluster is there."""

    def __init__(self, *, kept: bool = False) -> None:
        self.kept = kept

    def outputs(self, args: MockResourceArgs) -> dict[str, Any]:
        kind = args.typ.rsplit(":", 1)[-1]
        arn = f"arn:aws:{args.typ.split(':')[1].split('/')[0]}:::{args.name}"
        made: dict[str, dict[str, Any]] = {
            "HostKey": {"host_key": HOST_KEY},
            "Reserved": {"reservation": RESERVATION},
            "Instance": {
                "publicIp": public_ip(args.name) if args.inputs.get("associatePublicIpAddress") else "",
                "primaryNetworkInterfaceId": "eni-0123456789abcdef0",
            },
            "LaunchTemplate": {"latestVersion": 3},
            "AmiFromInstance": {"id": "ami-0123456789abcdef0", "rootSnapshotId": "snap-0123456789abcdef0"},
            "Eip": {"publicIp": ELASTIC},
            "EipAssociation": {"publicIp": ELASTIC},
            "Stack": {"outputs": STACK_OUTPUTS},
            "LustreFileSystem": {"id": FILE_SYSTEM, "dnsName": f"{FILE_SYSTEM}.fsx.amazonaws.com", "mountName": "abcd"},
            "Cluster": EKS,
            "NodeGroup": {"resources": [{"autoscalingGroups": [{"name": f"eks-{args.name}-0123"}]}]},
            "Repository": {"repositoryUrl": f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/{args.inputs.get('name')}"},
            "Key": {"keyId": "01234567-89ab-cdef-0123-456789abcdef", "arn": KEY},
            "Bucket": {"arn": f"arn:aws:s3:::{args.inputs.get('bucket')}"},
        }
        return {"arn": arn, **made.get(kind, {})}

    def invoked(self, args: MockCallArgs) -> dict[str, Any]:
        answers: dict[str, dict[str, Any]] = {
            "getCallerIdentity": {"accountId": ACCOUNT, "arn": f"arn:aws:sts::{ACCOUNT}:assumed-role/ops/ada"},
            "getSessionContext": {"issuerArn": f"arn:aws:iam::{ACCOUNT}:role/people/ops"},
            "getAvailabilityZones": {"zoneIds": ["use1-az3", *ZONES]},
            "getParameter": {"value": UBUNTU},
            "getInstanceTypeOfferings": {"locations": ZONES},
            "getAmiIds": {"ids": [value for value in _asked(args) if value in (OURS, FOREIGN)]},
            "getAmi": {"tags": {"trainyard-image": BAKED_FROM, **BUILT} if OURS in _asked(args) else {}},
            "getResources": {
                "resourceTagMappingLists": [{"resourceArn": f"arn:aws:s3:::{BUCKET}"}] if self.kept else []
            },
        }
        return answers[args.token.rsplit(":", 1)[-1]]


def public_ip(name: str) -> str:
    """A public address by a node's name: node1 has 198.51.100.1."""
    return f"198.51.100.{name.removeprefix('node') if name.startswith('node') else 250}"


def _asked(args: MockCallArgs) -> list[str]:
    return [str(value) for entry in args.args.get("filters", []) for value in entry["values"]]
