"""One passing and one failing case of every policy rule: the least that differs between them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from infra.policy import pack
from infra.policy import resource_types as types
from infra.policy.companion_rules import SWITCHES
from infra.policy.rule import DeclaredResource, PolicyFinding, Stack

TAGS = {"trainyard-stack": "lab", "trainyard-owner": "me", "trainyard-max-hours": "24"}
PROVIDER = {"region": "us-east-1", "defaultTags": json.dumps({"tags": TAGS})}


def declared(type_: str, name: str, links: Mapping[str, str] | None = None, /, **props: Any) -> DeclaredResource:
    """A resource with all tags; `links`: property -> name of the resource that it comes from."""
    on_aws = type_.startswith("aws:")
    return DeclaredResource(
        type=type_,
        name=name,
        props=props if on_aws else {"tags": dict(TAGS), **props},
        urn=f"urn:{name}",
        provider=PROVIDER if on_aws else {},
        links={key: frozenset({f"urn:{other}"}) for key, other in (links or {}).items()},
    )


def changed(resource: DeclaredResource, path: str, value: Any) -> DeclaredResource:
    """The resource with another value at a path such as `rules.0.cidr`; None takes it out. `@key`: where it is from."""
    if path.startswith("@"):
        return replace(resource, links={key: of for key, of in resource.links.items() if key != path[1:]})
    props = copy.deepcopy(dict(resource.props))
    at: Any = props
    *above, last = path.split(".")
    for step in above:
        at = at[int(step)] if isinstance(at, list) else at[step]
    if isinstance(at, list):
        at[int(last)] = value
    elif value is None:
        del at[last]
    else:
        at[last] = value
    return replace(resource, props=props)


DEVICE = {"encrypted": True, "deleteOnTermination": True, "volumeType": "gp3"}
INSTANCE = declared(
    types.INSTANCE,
    "builder",
    ami="ami-0123456789abcdef0",
    metadataOptions={"httpEndpoint": "enabled", "httpTokens": "required", "httpPutResponseHopLimit": 1},
    rootBlockDevice=DEVICE,
    userDataBase64="",
)
IMAGE = declared("aws:ec2/amiFromInstance:AmiFromInstance", "image", name="trainyard-lab")
TEMPLATE = declared(
    types.TEMPLATE,
    "template",
    {"imageId": "image"},
    imageId="ami-0fedcba9876543210",
    metadataOptions={"httpTokens": "required", "httpPutResponseHopLimit": 1},
    blockDeviceMappings=[{"deviceName": "/dev/sda1", "ebs": {"encrypted": "true", "deleteOnTermination": "true"}}],
)
FROM_TEMPLATE = declared(
    types.INSTANCE,
    "node1",
    {"launchTemplate": "template"},
    launchTemplate={"id": "lt-1", "version": "1"},
    volumeTags=dict(TAGS),
)
VM = declared(
    types.VM,
    "vm",
    osProfile={
        "adminUsername": "trainyard",
        "customData": "",
        "linuxConfiguration": {
            "disablePasswordAuthentication": True,
            "ssh": {"publicKeys": [{"path": "/x", "keyData": "ssh-ed25519 AAAA"}]},
        },
    },
    securityProfile={
        "securityType": "TrustedLaunch",
        "uefiSettings": {"secureBootEnabled": True, "vTpmEnabled": True},
    },
    storageProfile={
        "imageReference": {"publisher": "Canonical", "offer": "o", "sku": "server", "version": "24.04.202511010"},
        "osDisk": {"deleteOption": "Delete", "managedDisk": {"storageAccountType": "Premium_LRS"}},
    },
)
SSH_IN = declared(
    types.INGRESS,
    "ssh-in",
    description="SSH from the operator",
    cidrIpv4="203.0.113.7/32",
    ipProtocol="tcp",
    fromPort=22,
    toPort=22,
)
WEB_IN = declared(
    types.INGRESS,
    "web-in",
    description="A page from the operator",
    cidrIpv4="203.0.113.7/32",
    ipProtocol="tcp",
    fromPort=443,
    toPort=443,
)
GROUP = declared(types.GROUP, "group", description="The nodes of stack lab")
NSG_RULES = [
    {
        "name": "ssh",
        "direction": "Inbound",
        "access": "Allow",
        "protocol": "Tcp",
        "sourceAddressPrefix": "203.0.113.7/32",
        "destinationPortRange": "22",
    }
]
NSG = declared(types.NSG, "firewall", securityRules=NSG_RULES)
SUBNET = declared(types.SUBNET, "subnet", networkSecurityGroup={"id": "/nsg"})
ACCOUNT = declared(
    types.ACCOUNT,
    "account",
    enableHttpsTrafficOnly=True,
    minimumTlsVersion="TLS1_2",
    allowBlobPublicAccess=False,
    allowSharedKeyAccess=False,
    networkRuleSet={"defaultAction": "Deny"},
)
CONTAINER = declared(types.CONTAINER, "data", publicAccess="None")
BLOBS = declared(
    types.BLOBS,
    "blobs",
    {"accountName": "account"},
    isVersioningEnabled=True,
    deleteRetentionPolicy={"enabled": True, "days": 7.0},
    containerDeleteRetentionPolicy={"enabled": True, "days": 7.0},
)
OLD_VERSIONS = declared(
    types.ACCOUNT_LIFECYCLE,
    "old-versions",
    {"accountName": "account"},
    policy={
        "rules": [
            {"enabled": True, "definition": {"actions": {"version": {"delete": {"daysAfterCreationGreaterThan": 1.0}}}}}
        ]
    },
)


def policy(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


OWN_BUCKET = {
    "Effect": "Allow",
    "Action": ["s3:GetObject", "s3:PutObject"],
    "Resource": ["arn:aws:s3:::trainyard-lab/*"],
}
TRUST = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}
PLAIN_DENIED = {
    "Effect": "Deny",
    "Principal": "*",
    "Action": "s3:*",
    "Resource": ["arn:aws:s3:::trainyard-lab", "arn:aws:s3:::trainyard-lab/*"],
    "Condition": {"Bool": {"aws:SecureTransport": "false"}},
}
ROLE_POLICY = declared(types.ROLE_POLICY, "bucket-access", policy=policy(OWN_BUCKET))
ROLE = declared(types.ROLE, "role", assumeRolePolicy=policy(TRUST))
ATTACHMENT = declared(types.ATTACHMENT, "logs", policyArn="arn:aws:iam::aws:policy/AWSXRayDaemonWriteAccess", role="r")
ASSIGNMENT = declared(types.ASSIGNMENT, "reader", roleDefinitionId="/roles/ba92f5b4-2d11-453d-a403-e96b0029c9fe")
DEFINITION = declared(
    types.DEFINITION, "stopper", permissions=[{"actions": ["Microsoft.Compute/virtualMachines/deallocate/action"]}]
)
BUCKET = declared(types.BUCKET, "bucket", bucket="trainyard-lab")
ACCESS = declared(types.PUBLIC_ACCESS_BLOCK, "private", {"bucket": "bucket"}, **dict.fromkeys(SWITCHES, True))
ENCRYPTION = declared(
    types.ENCRYPTION,
    "encryption",
    {"bucket": "bucket"},
    rules=[{"applyServerSideEncryptionByDefault": {"sseAlgorithm": "AES256"}}],
)
VERSIONING = declared(types.VERSIONING, "versions", {"bucket": "bucket"}, versioningConfiguration={"status": "Enabled"})
LIFECYCLE = declared(
    types.BUCKET_LIFECYCLE,
    "tidy",
    {"bucket": "bucket"},
    rules=[{"status": "Enabled", "abortIncompleteMultipartUpload": {"daysAfterInitiation": 2.0}}],
)
BUCKET_POLICY = declared(types.BUCKET_POLICY, "tls", {"bucket": "bucket"}, policy=policy(PLAIN_DENIED))
VPC = declared(types.VPC, "network", cidrBlock="10.0.0.0/24")
VNET = declared(types.VNET, "vnet", addressSpace={"addressPrefixes": ["10.0.0.0/16"]})
DEFAULT_GROUP = declared(types.DEFAULT_GROUP, "closed", {"vpcId": "network"}, ingress=[], egress=[])
FLOW_LOG = declared(types.FLOW_LOG, "log", {"vpcId": "network"}, trafficType="ALL")
VNET_FLOW_LOG = declared(
    types.VNET_FLOW_LOG, "vnet-log", {"targetResourceId": "vnet"}, enabled=True, identity={"type": "UserAssigned"}
)
EKS = declared(
    types.EKS,
    "cluster",
    vpcConfig={"endpointPublicAccess": True, "publicAccessCidrs": ["203.0.113.7/32"]},
    accessConfig={"authenticationMode": "API", "bootstrapClusterCreatorAdminPermissions": False},
    encryptionConfig={"provider": {"keyArn": "arn:aws:kms:::key/k"}, "resources": ["secrets"]},
    enabledClusterLogTypes=["api", "audit", "authenticator", "controllerManager", "scheduler"],
)
KEY = declared(types.KEY, "key", enableKeyRotation=True)
REPOSITORY = declared(
    types.REPOSITORY, "images", imageTagMutability="IMMUTABLE", imageScanningConfiguration={"scanOnPush": True}
)

GOOD = Stack(
    [
        *(INSTANCE, IMAGE, TEMPLATE, FROM_TEMPLATE, VM, SSH_IN, WEB_IN, GROUP, NSG, SUBNET, ACCOUNT, CONTAINER),
        *(BLOBS, OLD_VERSIONS),
        *(ROLE_POLICY, ROLE, ATTACHMENT, ASSIGNMENT, DEFINITION, BUCKET, ACCESS, ENCRYPTION, VERSIONING),
        *(BUCKET_POLICY, LIFECYCLE, VPC, VNET, DEFAULT_GROUP, FLOW_LOG, VNET_FLOW_LOG),
        *(EKS, KEY, REPOSITORY),
    ],
    flow_logs=True,
    images=("ami-0123456789abcdef0",),
)
"""A stack that all rules hold of, on both clouds at once."""


@dataclass(frozen=True)
class Case:
    """One edit of the good stack that one rule forbids."""

    name: str
    path: str
    value: Any
    """What the rule forbids there; None: that there is nothing."""

    def stack(self, value: Any) -> Stack:
        """The good stack with this value at the case's place."""
        resources = [changed(found, self.path, value) if found.name == self.name else found for found in GOOD.resources]
        return replace(GOOD, resources=resources)


CASES: dict[str, Case] = {
    "imdsv2-only": Case("builder", "metadataOptions.httpTokens", "optional"),
    "metadata-one-hop": Case("template", "metadataOptions.httpPutResponseHopLimit", 2),
    "no-passwords": Case("vm", "osProfile.linuxConfiguration.disablePasswordAuthentication", False),
    "trusted-launch": Case("vm", "securityProfile.securityType", "Standard"),
    "volumes-encrypted": Case("builder", "rootBlockDevice.encrypted", False),
    "disks-managed": Case("vm", "storageProfile.osDisk.managedDisk", None),
    "volumes-die-with-node": Case("template", "blockDeviceMappings.0.ebs.deleteOnTermination", "false"),
    "disks-die-with-node": Case("vm", "storageProfile.osDisk.deleteOption", "Detach"),
    "image-version-pinned": Case("vm", "storageProfile.imageReference.version", "latest"),
    "ami-pinned": Case("template", "imageId", "resolve:ssm:/aws/service/canonical/ubuntu/current/ami-id"),
    "ami-does-not-drift": Case("builder", "ami", "ami-99999999"),
    "own-launch-template": Case("node1", "@launchTemplate", None),
    "no-ssh-from-anywhere": Case("ssh-in", "cidrIpv4", "0.0.0.0/0"),
    "nothing-from-anywhere": Case("web-in", "cidrIpv4", "0.0.0.0/0"),
    "kubernetes-api-not-public": Case("cluster", "vpcConfig.publicAccessCidrs", ["0.0.0.0/0"]),
    "kubernetes-control-plane-logs": Case("cluster", "enabledClusterLogTypes", ["api"]),
    "kubernetes-secrets-encrypted": Case("cluster", "encryptionConfig.resources", []),
    "kubernetes-access-entries": Case("cluster", "accessConfig.authenticationMode", "API_AND_CONFIG_MAP"),
    "keys-rotate": Case("key", "enableKeyRotation", False),
    "images-fixed-and-scanned": Case("images", "imageTagMutability", "MUTABLE"),
    "security-group-descriptions": Case("group", "description", "Managed by Pulumi"),
    "subnets-behind-a-firewall": Case("subnet", "networkSecurityGroup", None),
    "default-group-closed": Case("closed", "ingress", [{"protocol": "-1", "self": True}]),
    "flow-logs-as-configured": Case("log", "trafficType", "ACCEPT"),
    "bucket-policy-not-public": Case("tls", "policy", policy(PLAIN_DENIED, {**OWN_BUCKET, "Principal": {"AWS": "*"}})),
    "bucket-public-access-blocked": Case("private", "ignorePublicAcls", False),
    "bucket-encrypted": Case("encryption", "rules.0.applyServerSideEncryptionByDefault", None),
    "bucket-versioned": Case("versions", "versioningConfiguration.status", "Suspended"),
    "bucket-uploads-aborted": Case("tidy", "rules.0.abortIncompleteMultipartUpload", None),
    "bucket-tls-only": Case("tls", "policy", policy({**PLAIN_DENIED, "Condition": {}})),
    "storage-https-only": Case("account", "enableHttpsTrafficOnly", False),
    "storage-tls-1.2": Case("account", "minimumTlsVersion", "TLS1_0"),
    "storage-no-public-blobs": Case("account", "allowBlobPublicAccess", True),
    "containers-private": Case("data", "publicAccess", "Blob"),
    "storage-no-shared-key": Case("account", "allowSharedKeyAccess", True),
    "storage-closed-by-default": Case("account", "networkRuleSet.defaultAction", "Allow"),
    "blobs-can-be-had-back": Case("blobs", "deleteRetentionPolicy.days", 6),
    "old-versions-deleted": Case("old-versions", "policy.rules.0.definition.actions.version", None),
    "iam-no-stars": Case("bucket-access", "policy", policy({**OWN_BUCKET, "Resource": "*"})),
    "roles-for-services": Case("role", "assumeRolePolicy", policy({**TRUST, "Principal": {"AWS": "*"}})),
    "roles-for-this-account": Case(
        "role", "assumeRolePolicy", policy({**TRUST, "Principal": {"Service": "vpc-flow-logs.amazonaws.com"}})
    ),
    "no-parameters-of-the-account": Case("logs", "policyArn", "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"),
    "no-administrators": Case("logs", "policyArn", "arn:aws:iam::aws:policy/AdministratorAccess"),
    "no-privileged-roles": Case("reader", "roleDefinitionId", "/roles/8E3AF657-a8ff-443c-a75c-2fe8c4bcb635"),
    "role-definitions-no-stars": Case("stopper", "permissions.0.actions.0", "Microsoft.Compute/*"),
    "no-secret-in-user-data": Case("builder", "userDataBase64", "-----BEGIN OPENSSH PRIVATE KEY-----"),
    "tagged": Case("vm", "tags.trainyard-owner", None),
    "volumes-tagged": Case("node1", "volumeTags.trainyard-stack", None),
}
"""By the rule's name."""


def found(stack: Stack) -> dict[str, list[PolicyFinding]]:
    """By rule."""
    all_: dict[str, list[PolicyFinding]] = {}
    for finding in pack.judge(stack):
        all_.setdefault(finding.rule, []).append(finding)
    return all_


def violated(*resources: DeclaredResource) -> set[str]:
    """Rules over single resources that one of these breaks."""
    return {finding.rule for resource in resources for finding in pack.of_resource(resource) if finding.decided}
