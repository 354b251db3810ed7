"""Every policy rule finds a violation that is planted in what the real program declares, and no other rule does."""

from __future__ import annotations

import base64
import functools
import gzip
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from planted_violations import GONE, KINDS, Change, change, declared, each, found, unlinked, without

from infra import user_data
from infra.clouds.naming import MAX_HOURS_TAG, STACK_TAG
from infra.policy import pack
from infra.policy.rule import DeclaredResource

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----"
SDKS = {
    "aws-xeon": "pulumi_aws",
    "aws-gpu": "pulumi_aws",
    "aws-slurm": "pulumi_aws",
    "aws-eks": "pulumi_aws",
    "azure-xeon": "pulumi_azure_native",
}


@dataclass(frozen=True)
class Plant:
    """One change of what is declared with these keys, which one rule forbids."""

    rule: str
    cluster: str
    change: Change
    keys: dict[str, str] = field(default_factory=dict)


def aws(rule: str, change: Change, **keys: str) -> Plant:
    return Plant(rule, "aws-xeon", change, keys)


def azure(rule: str, change: Change, **keys: str) -> Plant:
    return Plant(rule, "azure-xeon", change, keys)


def eks(rule: str, change: Change, **keys: str) -> Plant:
    return Plant(rule, "aws-eks", change, keys)


def attached(policy: str) -> Change:
    """The nodes' role has one of AWS's own policies instead of ours."""

    def edit(resource: DeclaredResource) -> DeclaredResource:
        props = {"role": resource.props["role"], "policyArn": f"arn:aws:iam::aws:policy/{policy}"}
        return replace(resource, type="aws:iam/rolePolicyAttachment:RolePolicyAttachment", props=props)

    return each("role-ssm", edit)


def no_default_tags(resource: DeclaredResource) -> DeclaredResource:
    return replace(resource, provider={k: v for k, v in resource.provider.items() if k != "defaultTags"})


def with_line(line: str) -> Callable[[str], str]:
    """User data as a cloud has it, with another line in it."""
    return lambda data: user_data.packed(gzip.decompress(base64.b64decode(data)).decode() + f"\n{line}\n")


def plus(*more: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda items: [*items, *more]


def to_everybody(statements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*statements, {**statements[0], "Effect": "Allow", "Condition": {}}]


def ssh(protocol: str, source: str, ports: str) -> dict[str, str]:
    """Other values for the rule of Azure's firewall that lets SSH in."""
    return {
        f"{SSH}.protocol": protocol,
        f"{SSH}.sourceAddressPrefix": source,
        f"{SSH}.destinationPortRange": ports,
    }


BUILDER, SSH, OS_DISK = "builder-[0-9a-f]+", "securityRules.0", "storageProfile.osDisk"
CONTRIBUTOR = "b24988ac-6180-42a0-ab88-20f7382dd24c"
OPENED = {"protocol": "-1", "fromPort": 0, "toPort": 0, "self": True}
PLANTS = [
    aws("imdsv2-only", change("template", {"metadataOptions.httpTokens": "optional"})),
    aws("imdsv2-only", change(BUILDER, {"metadataOptions.httpTokens": "optional"})),
    aws("metadata-one-hop", change("template", {"metadataOptions.httpPutResponseHopLimit": 2})),
    aws("metadata-one-hop", change(BUILDER, {"metadataOptions.httpPutResponseHopLimit": GONE})),
    aws("own-launch-template", unlinked("node1", "launchTemplate", {"id": "lt-0123456789abcdef0", "version": "3"})),
    aws("volumes-encrypted", change("template", {"blockDeviceMappings.0.ebs.encrypted": "false"})),
    aws("volumes-encrypted", change(BUILDER, {"rootBlockDevice.encrypted": GONE})),
    aws("volumes-die-with-node", change("template", {"blockDeviceMappings.0.ebs.deleteOnTermination": "false"})),
    aws("volumes-die-with-node", change(BUILDER, {"rootBlockDevice.deleteOnTermination": False})),
    aws("ami-pinned", change(BUILDER, {"ami": "resolve:ssm:/aws/service/canonical/ubuntu/server/24.04/stable"})),
    aws("ami-does-not-drift", each(BUILDER, lambda one: replace(one, ignores=()))),
    aws("no-ssh-from-anywhere", change("operator-ssh", {"cidrIpv4": "0.0.0.0/0"})),
    aws("no-ssh-from-anywhere", change("operator-ssh", {"cidrIpv4": GONE, "cidrIpv6": "0::0/0"})),
    aws(
        "no-ssh-from-anywhere",
        change("nodes-among-themselves", {"referencedSecurityGroupId": GONE, "cidrIpv4": "0.0.0.0/0"}),
    ),
    aws(
        "nothing-from-anywhere",
        change("operator-ssh", {"cidrIpv4": GONE, "cidrIpv6": "::/0", "fromPort": 443, "toPort": 8443}),
    ),
    aws("security-group-descriptions", change("operator-ssh", {"description": GONE})),
    aws("default-group-closed", change("default-group", {"ingress": [OPENED]})),
    aws("default-group-closed", unlinked("default-group", "vpcId", "vpc-1")),
    aws("flow-logs-as-configured", change("flow-log", {"trafficType": "ACCEPT"}), flowLogs="true"),
    aws("flow-logs-as-configured", without("flow-log"), flowLogs="true"),
    aws("bucket-public-access-blocked", change("data-private", {"restrictPublicBuckets": False})),
    aws("bucket-encrypted", change("data-encrypted", {"rules.0.applyServerSideEncryptionByDefault": GONE})),
    aws("bucket-versioned", change("data-versions", {"versioningConfiguration.status": "Suspended"})),
    aws(
        "bucket-uploads-aborted",
        change("data-tidy", {"rules.0.abortIncompleteMultipartUpload.daysAfterInitiation": GONE}),
    ),
    aws("bucket-tls-only", change("data-tls", {"policy.Statement.0.Condition.Bool.aws:SecureTransport": "true"})),
    aws("bucket-tls-only", change("data-tls", {"policy.Statement.0.Resource.1": GONE})),
    aws("bucket-policy-not-public", change("data-tls", {"policy.Statement": to_everybody})),
    aws("iam-no-stars", change("role-data", {"policy.Statement.0.Resource": "*"})),
    aws("iam-no-stars", change("role-data", {"policy.Statement.1.Action": plus("s3:*")})),
    aws("iam-no-stars", change("role-ssm", {"policy.Statement.0.Action": plus("ssm:GetParameter")})),
    aws("iam-no-stars", change("role-metrics", {"policy.Statement.0.Condition": {}}), monitoring="true"),
    aws("roles-for-services", change("role", {"assumeRolePolicy.Statement.0.Principal": {"AWS": "*"}})),
    aws(
        "roles-for-this-account",
        change("flow-log-role", {"assumeRolePolicy.Statement.0.Condition": {}}),
        flowLogs="true",
    ),
    aws("no-administrators", attached("AdministratorAccess")),
    aws("no-parameters-of-the-account", attached("AmazonSSMManagedInstanceCore")),
    aws("tagged", each("network", no_default_tags)),
    aws("volumes-tagged", change(BUILDER, {"volumeTags": {"Name": "x"}})),
    aws("volumes-tagged", change("node1", {"volumeTags": GONE})),
    aws("no-secret-in-user-data", change("node1", {"userDataBase64": with_line(f'HF_TOKEN="hf_{"a1B2" * 9}"')})),
    aws("no-secret-in-user-data", change(BUILDER, {"userDataBase64": with_line(f"# {KEY}")})),
    azure("no-passwords", change("node1", {"osProfile.linuxConfiguration.disablePasswordAuthentication": False})),
    azure("no-passwords", change("node1", {"osProfile.adminPassword": "correct horse 1"})),
    azure("trusted-launch", change("node1", {"securityProfile.securityType": GONE})),
    azure("trusted-launch", change("node1", {"securityProfile.uefiSettings.secureBootEnabled": False})),
    azure(
        "disks-managed",
        change(
            "node1", {f"{OS_DISK}.managedDisk": GONE, f"{OS_DISK}.vhd": {"uri": "https://x.blob.core.windows.net/y"}}
        ),
    ),
    azure("disks-die-with-node", change("node1", {f"{OS_DISK}.deleteOption": GONE})),
    azure("image-version-pinned", change(BUILDER, {"storageProfile.imageReference.version": "latest"})),
    azure("image-version-pinned", change("node1", {"storageProfile.imageReference.id": "/galleries/g/images/i"})),
    azure("subnets-behind-a-firewall", change("subnet", {"networkSecurityGroup": GONE})),
    azure("no-ssh-from-anywhere", change("security", {f"{SSH}.sourceAddressPrefix": "*"})),
    azure("no-ssh-from-anywhere", change("security", ssh("*", "Internet", "20-30"))),
    azure("no-ssh-from-anywhere", change("security", ssh("Tcp", "::/0", "*"))),
    azure(
        "no-ssh-from-anywhere",
        change("security", {f"{SSH}.sourceAddressPrefix": GONE, f"{SSH}.sourceAddressPrefixes": ["10.0.0.1", "Any"]}),
    ),
    azure("nothing-from-anywhere", change("security", ssh("Tcp", "Internet", "443"))),
    azure("flow-logs-as-configured", change("flow-logs", {"enabled": False}), flowLogs="true"),
    azure("flow-logs-as-configured", change("flow-logs", {"identity.type": GONE}), flowLogs="true"),
    azure("flow-logs-as-configured", without("flow-logs"), flowLogs="true"),
    azure("storage-https-only", change("data", {"enableHttpsTrafficOnly": False})),
    azure("storage-tls-1.2", change("data", {"minimumTlsVersion": "TLS1_0"})),
    azure("storage-no-public-blobs", change("data", {"allowBlobPublicAccess": GONE})),
    azure("storage-no-shared-key", change("data", {"allowSharedKeyAccess": True})),
    azure("storage-closed-by-default", change("data", {"networkRuleSet.defaultAction": "Allow"})),
    azure("blobs-can-be-had-back", change("blobs", {"isVersioningEnabled": False})),
    azure("blobs-can-be-had-back", change("blobs", {"containerDeleteRetentionPolicy": GONE})),
    azure("old-versions-deleted", change("tidy", {"policy.rules.0": GONE}), flowLogs="true"),
    azure("containers-private", change("container", {"publicAccess": "Blob"})),
    eks("kubernetes-api-not-public", change("cluster", {"vpcConfig.publicAccessCidrs": GONE})),
    eks("kubernetes-api-not-public", change("cluster", {"vpcConfig.publicAccessCidrs": ["10.0.0.1/32", "::/0"]})),
    eks("kubernetes-control-plane-logs", change("cluster", {"enabledClusterLogTypes.1": GONE})),
    eks("kubernetes-secrets-encrypted", change("cluster", {"encryptionConfig": GONE})),
    eks("kubernetes-access-entries", change("cluster", {"accessConfig.authenticationMode": "CONFIG_MAP"})),
    eks(
        "kubernetes-access-entries",
        change("cluster", {"accessConfig.bootstrapClusterCreatorAdminPermissions": True}),
    ),
    eks("keys-rotate", change("cluster-key", {"enableKeyRotation": GONE})),
    eks("images-fixed-and-scanned", change("images", {"imageScanningConfiguration.scanOnPush": False})),
    eks("metadata-one-hop", change("gpus-template", {"metadataOptions.httpPutResponseHopLimit": 2})),
    eks("roles-for-this-account", change("trainer-role", {"assumeRolePolicy.Statement.0.Condition": {}})),
    azure("no-privileged-roles", change("may-store", {"roleDefinitionId": f"/roleDefinitions/{CONTRIBUTOR}"})),
    azure("role-definitions-no-stars", change("role", {"permissions.0.actions": plus("Microsoft.Compute/*")})),
    azure("tagged", change("network", {"tags": {STACK_TAG: "azure-xeon"}})),
    azure("tagged", change("network", {f"tags.{MAX_HOURS_TAG}": "soon"})),
    azure("no-secret-in-user-data", change("node1", {"osProfile.customData": KEY})),
]
EVERY_WAY = [
    {"flowLogs": "true"},
    {"publicNodes": "all", "spot": "true"},
    {"keepData": "true", "replaceNodes": "true"},
    {"nodes": "1"},
]
"""Settings that the program is judged with beside those of the stack file."""
OF_ONE = {
    "aws-xeon": [{"monitoring": "true"}, {"capacityReservation": "none"}],
    "aws-gpu": [{"instanceType": "p4d.24xlarge", "publicNodes": "all"}, {"instanceType": "g5.xlarge"}],
    "aws-slurm": [{"spot": "true", "monitoring": "true"}],
    "aws-eks": [{"spot": "true", "monitoring": "true"}, {"instanceType": "p5.48xlarge"}, {"instanceType": "g5.xlarge"}],
}
"""Those that only one cluster has so far."""
REFUSED = {
    "aws-slurm": [{"publicNodes": "all", "spot": "true"}, {"nodes": "1"}],
    "aws-eks": [{"publicNodes": "all", "spot": "true"}],
}
"""Those that a cluster's check refuses."""


def ways(cluster: str) -> list[dict[str, str]]:
    return [*(keys for keys in EVERY_WAY if keys not in REFUSED.get(cluster, [])), *OF_ONE.get(cluster, [])]


def needs(cluster: str) -> None:
    pytest.importorskip(SDKS[cluster])


@pytest.fixture(scope="module")
def program(key_file: Path) -> Callable[..., list[DeclaredResource]]:
    """What a cluster's program declares with some keys; run once for each."""

    @functools.cache
    def ran(cluster: str, keys: tuple[tuple[str, str], ...]) -> list[DeclaredResource]:
        return declared(cluster, {"publicKey": str(key_file), **dict(keys)})

    def run(cluster: str, keys: dict[str, str]) -> list[DeclaredResource]:
        needs(cluster)
        return ran(cluster, tuple(keys.items()))

    return run


@pytest.mark.parametrize(
    "plant", [pytest.param(one, id=f"{one.cluster}-{one.rule}-{i}") for i, one in enumerate(PLANTS)]
)
def test_exactly_the_rule_of_a_planted_violation_finds_it(
    program: Callable[..., list[DeclaredResource]], plant: Plant
) -> None:
    keys = {"nodes": "2", **plant.keys}
    findings = found(plant.cluster, keys, plant.change(program(plant.cluster, keys)))
    assert set(findings) == {plant.rule}, findings
    assert not any("undecided" in what for what in findings[plant.rule])


@pytest.mark.parametrize("cluster", KINDS)
def test_the_program_as_it_stands_passes_every_rule(
    program: Callable[..., list[DeclaredResource]], cluster: str
) -> None:
    assert found(cluster, {}, program(cluster, {})) == {}


@pytest.mark.acceptance
@pytest.mark.parametrize("cluster, keys", [(cluster, keys) for cluster in KINDS for keys in ways(cluster)])
def test_so_it_does_with_other_settings(
    program: Callable[..., list[DeclaredResource]], cluster: str, keys: dict[str, str]
) -> None:
    assert found(cluster, keys, program(cluster, keys)) == {}


def test_every_rule_has_a_plant() -> None:
    assert {plant.rule for plant in PLANTS} == {rule.name for rule in (*pack.RULES, *pack.STACK_RULES)}


def test_a_plant_that_no_longer_applies_fails() -> None:
    one = DeclaredResource("t", "node1", {"a": 1}, urn="node1")
    for plant in (change("node2", {"a": 2}), change("node1", {"a": 1}), without("node2"), unlinked("node1", "a", 2)):
        with pytest.raises(AssertionError):
            plant([one])
    with pytest.raises(KeyError):
        change("node1", {"b": GONE})([one])
    assert change("node1", {"a": 2})([one])[0].props == {"a": 2} and one.props == {"a": 1}
