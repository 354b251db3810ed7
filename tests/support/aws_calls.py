"""Which calls AWS's provider makes of each type of resource, and where the resource's properties stand in them.

What is not listed keeps its name, in AWS's spelling. Properties that are Pulumi's own affair, or a call without forms
of its own, are under OWN with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OWN = ""
"""A property that no call of this resource carries: a switch of the provider's, or tags, which are judged apart."""


@dataclass(frozen=True)
class Call:
    """One call, and where the resource's properties stand in it: property -> path, as `A.B[].C`."""

    service: str
    operation: str
    paths: dict[str, str] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    """What the provider adds by itself."""
    rest: str | None = ""
    """Path under which the properties that are not listed stand; None: they are in another call."""


def _in_bucket(operation: str, **paths: str) -> list[Call]:
    return [Call("s3", operation, {"bucket": "Bucket", **paths})]


def _rule(operation: str) -> list[Call]:
    ranges, pairs = "IpPermissions[].IpRanges[]", "IpPermissions[].UserIdGroupPairs[]"
    return [
        Call(
            "ec2",
            operation,
            {
                "securityGroupId": "GroupId",
                "cidrIpv4": f"{ranges}.CidrIp",
                "referencedSecurityGroupId": f"{pairs}.GroupId",
                "description": f"{ranges}.Description",
                **{key: f"IpPermissions[].{key[0].upper()}{key[1:]}" for key in ("ipProtocol", "fromPort", "toPort")},
            },
        )
    ]


LUSTRE = (
    *("deploymentType", "perUnitStorageThroughput", "dataCompressionType", "metadataConfiguration"),
    "automaticBackupRetentionDays",
)
"""Properties of a file system that are of Lustre's kind alone."""
_DISK = "BlockDeviceMappings[].Ebs"
REQUESTS: dict[str, list[Call]] = {
    "aws:ec2/vpc:Vpc": [Call("ec2", "CreateVpc", {"enableDnsSupport": OWN, "enableDnsHostnames": OWN})],
    "aws:ec2/subnet:Subnet": [Call("ec2", "CreateSubnet", {"mapPublicIpOnLaunch": OWN})],
    "aws:ec2/internetGateway:InternetGateway": [Call("ec2", "CreateInternetGateway", {"vpcId": OWN})],
    "aws:ec2/routeTable:RouteTable": [Call("ec2", "CreateRouteTable")],
    "aws:ec2/route:Route": [Call("ec2", "CreateRoute")],
    "aws:ec2/routeTableAssociation:RouteTableAssociation": [Call("ec2", "AssociateRouteTable")],
    "aws:ec2/eip:Eip": [Call("ec2", "AllocateAddress")],
    "aws:ec2/eipAssociation:EipAssociation": [Call("ec2", "AssociateAddress")],
    "aws:ec2/natGateway:NatGateway": [Call("ec2", "CreateNatGateway")],
    "aws:ec2/vpcEndpoint:VpcEndpoint": [Call("ec2", "CreateVpcEndpoint")],
    "aws:ec2/flowLog:FlowLog": [
        Call(
            "ec2",
            "CreateFlowLogs",
            {"vpcId": "ResourceIds[]", "iamRoleArn": "DeliverLogsPermissionArn"},
            {"ResourceType": "VPC"},
        )
    ],
    "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup": [
        # The network's own group is there already: the provider takes its rules away.
        Call("ec2", "CreateTags", dict.fromkeys(("vpcId", "ingress", "egress"), OWN), {"Resources": [], "Tags": []})
    ],
    "aws:ec2/securityGroup:SecurityGroup": [Call("ec2", "CreateSecurityGroup", {"name": "GroupName"})],
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": _rule("AuthorizeSecurityGroupIngress"),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": _rule("AuthorizeSecurityGroupEgress"),
    "aws:ec2/keyPair:KeyPair": [Call("ec2", "ImportKeyPair", {"publicKey": "PublicKeyMaterial"})],
    "aws:ec2/placementGroup:PlacementGroup": [Call("ec2", "CreatePlacementGroup", {"name": "GroupName"})],
    "aws:ec2/launchTemplate:LaunchTemplate": [
        Call(
            "ec2",
            "CreateLaunchTemplate",
            {
                **{"name": "LaunchTemplateName", "description": "VersionDescription", "updateDefaultVersion": OWN},
                "networkInterfaces.securityGroups": "Groups",
                "vpcSecurityGroupIds": "LaunchTemplateData.SecurityGroupIds",
            },
            rest="LaunchTemplateData",
        )
    ],
    "aws:ec2/instance:Instance": [
        Call(
            "ec2",
            "RunInstances",
            {
                "ami": "ImageId",
                "userDataBase64": "UserData",
                "userDataReplaceOnChange": OWN,
                "privateIp": "PrivateIpAddress",
                "associatePublicIpAddress": OWN,
                "vpcSecurityGroupIds": "SecurityGroupIds",
                "volumeTags": OWN,
                "rootBlockDevice": _DISK,
                "iamInstanceProfile": "IamInstanceProfile.Name",
                "launchTemplate.id": "LaunchTemplate.LaunchTemplateId",
                "capacityReservationSpecification": "CapacityReservationSpecification",
            },
            {"MinCount": 1, "MaxCount": 1},
        )
    ],
    "aws:ec2/amiFromInstance:AmiFromInstance": [
        Call("ec2", "CreateImage", {"sourceInstanceId": "InstanceId", "snapshotWithoutReboot": "NoReboot"})
    ],
    "aws:ec2/tag:Tag": [
        Call("ec2", "CreateTags", {"resourceId": "Resources[]", "key": "Tags[].Key", "value": "Tags[].Value"})
    ],
    "aws:ec2transitgateway/instanceState:InstanceState": [
        Call("ec2", "StopInstances", {"instanceId": "InstanceIds[]", "state": OWN})
    ],
    "aws:iam/role:Role": [
        Call("iam", "CreateRole", {"name": "RoleName", "assumeRolePolicy": "AssumeRolePolicyDocument"})
    ],
    "aws:iam/rolePolicy:RolePolicy": [
        Call("iam", "PutRolePolicy", {"name": "PolicyName", "role": "RoleName", "policy": "PolicyDocument"})
    ],
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": [Call("iam", "AttachRolePolicy", {"role": "RoleName"})],
    "aws:iam/instanceProfile:InstanceProfile": [
        Call("iam", "AddRoleToInstanceProfile", {"name": "InstanceProfileName", "role": "RoleName"})
    ],
    "aws:cloudwatch/logGroup:LogGroup": [
        Call("logs", "CreateLogGroup", {"name": "logGroupName"}, rest=None),
        Call("logs", "PutRetentionPolicy", {"name": "logGroupName"}),
    ],
    "aws:s3/bucket:Bucket": _in_bucket("CreateBucket", forceDestroy=OWN),
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock": [
        Call("s3", "PutPublicAccessBlock", {"bucket": "Bucket"}, rest="PublicAccessBlockConfiguration")
    ],
    "aws:s3/bucketOwnershipControls:BucketOwnershipControls": _in_bucket(
        "PutBucketOwnershipControls", rule="OwnershipControls.Rules[]"
    ),
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration": _in_bucket(
        "PutBucketEncryption", rules="ServerSideEncryptionConfiguration.Rules"
    ),
    "aws:s3/bucketVersioning:BucketVersioning": _in_bucket(
        "PutBucketVersioning", versioningConfiguration="VersioningConfiguration"
    ),
    "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration": _in_bucket(
        "PutBucketLifecycleConfiguration", rules="LifecycleConfiguration.Rules"
    ),
    "aws:s3/bucketPolicy:BucketPolicy": _in_bucket("PutBucketPolicy", policy="Policy"),
    "aws:s3/bucketObjectv2:BucketObjectv2": [Call("s3", "PutObject", {"content": "Body"})],
    "aws:iam/policy:Policy": [
        Call("iam", "CreatePolicy", {"name": "PolicyName", "policy": "PolicyDocument", "description": "Description"})
    ],
    "aws:cloudformation/stack:Stack": [Call("cloudformation", "CreateStack", {"name": "StackName", "parameters": OWN})],
    "aws:fsx/lustreFileSystem:LustreFileSystem": [
        Call(
            "fsx",
            "CreateFileSystem",
            {
                # Ids of other resources, which the recorder makes up in no form of EC2's.
                **{"subnetIds": OWN, "securityGroupIds": OWN},
                **{key: f"LustreConfiguration.{key[0].upper()}{key[1:]}" for key in LUSTRE},
            },
            {"FileSystemType": "LUSTRE", "SubnetIds": ["subnet-01234567"]},
        )
    ],
    "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation": [
        Call(
            "fsx",
            "CreateDataRepositoryAssociation",
            {"batchImportMetaDataOnCreate": "BatchImportMetaDataOnCreate"},
        )
    ],
    "aws:kms/key:Key": [
        Call("kms", "CreateKey", {"enableKeyRotation": OWN, "deletionWindowInDays": OWN}),
        Call(
            "kms",
            "ScheduleKeyDeletion",
            {"deletionWindowInDays": "PendingWindowInDays"},
            {"KeyId": "01234567-89ab-cdef-0123-456789abcdef"},
            rest=None,
        ),
    ],
    "aws:kms/alias:Alias": [Call("kms", "CreateAlias", {"name": "AliasName"})],
    "aws:ecr/repository:Repository": [
        Call(
            "ecr",
            "CreateRepository",
            {
                **{"name": "repositoryName", "forceDelete": OWN},
                "encryptionConfigurations": "encryptionConfiguration",
            },
        )
    ],
    "aws:ecr/lifecyclePolicy:LifecyclePolicy": [
        Call("ecr", "PutLifecyclePolicy", {"repository": "repositoryName", "policy": "lifecyclePolicyText"})
    ],
    "aws:eks/cluster:Cluster": [
        Call(
            "eks",
            "CreateCluster",
            {
                **{"vpcConfig": "resourcesVpcConfig", "encryptionConfig": "encryptionConfig[]"},
                "enabledClusterLogTypes": "logging.clusterLogging[].types",
            },
        )
    ],
    "aws:eks/accessEntry:AccessEntry": [Call("eks", "CreateAccessEntry")],
    "aws:eks/accessPolicyAssociation:AccessPolicyAssociation": [Call("eks", "AssociateAccessPolicy")],
    "aws:eks/podIdentityAssociation:PodIdentityAssociation": [Call("eks", "CreatePodIdentityAssociation")],
    "aws:eks/addon:Addon": [
        Call(
            "eks",
            "CreateAddon",
            {"resolveConflictsOnCreate": "resolveConflicts", "resolveConflictsOnUpdate": OWN},
        ),
        Call("eks", "UpdateAddon", {"resolveConflictsOnUpdate": "resolveConflicts", "resolveConflictsOnCreate": OWN}),
    ],
    "aws:eks/nodeGroup:NodeGroup": [
        Call(
            "eks",
            "CreateNodegroup",
            {"nodeGroupName": "nodegroupName", "nodeRoleArn": "nodeRole", "subnetIds": "subnets"},
        )
    ],
    "aws:budgets/budget:Budget": [
        Call(
            "budgets",
            "CreateBudget",
            {
                "name": "Budget.BudgetName",
                "limitAmount": "Budget.BudgetLimit.Amount",
                "limitUnit": "Budget.BudgetLimit.Unit",
                "costFilters": OWN,
                "notifications": OWN,
            },
            {"AccountId": "123456789012"},
            rest="Budget",
        ),
    ],
}
"""Every type of resource that our stacks declare on AWS."""
