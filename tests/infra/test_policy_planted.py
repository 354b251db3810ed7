"""Every policy rule fails on a violation that is planted in a copy of the real program, and on nothing else."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from planted_violations import KINDS, copy_of

from infra.policy import pack

ROOT = Path(__file__).resolve().parents[2]
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----"
AWS, AZURE = "infra/clouds/aws/", "infra/clouds/azure/"
SDKS = {"aws-xeon": "pulumi_aws", "azure-xeon": "pulumi_azure_native"}


@dataclass(frozen=True)
class Plant:
    """One edit of one file. The text must stand there once: a plant that no longer applies fails."""

    rule: str
    cluster: str
    file: str
    old: str
    new: str
    keys: dict[str, str] = field(default_factory=dict)


def aws(rule: str, file: str, old: str, new: str, **keys: str) -> Plant:
    return Plant(rule, "aws-xeon", AWS + file, old, new, keys)


def azure(rule: str, file: str, old: str, new: str, **keys: str) -> Plant:
    return Plant(rule, "azure-xeon", AZURE + file, old, new, keys)


AGENT = 'called = aws.iam.RolePolicy("role-ssm", name=named(settings, "ssm"), role=role.name, policy=agent, opts=opts)'


def attached(name: str) -> tuple[str, str]:
    """The edit that gives the nodes a policy of AWS's own instead."""
    arn = f"arn:aws:iam::aws:policy/{name}"
    return AGENT, f'called = aws.iam.RolePolicyAttachment("role-ssm", role=role.name, policy_arn="{arn}", opts=opts)'


ADMIN = "cidr_ipv4=str(settings.cloud.admin_cidr),"
SSH_RULE = f'{ADMIN}\n        ip_protocol="tcp",\n        from_port=22,\n        to_port=22,'
NSG_SSH = '"Tcp", admin, subnet, "22"'
CLOSED = "ingress=[], egress=[]"
OPENED = (
    'ingress=[aws.ec2.DefaultSecurityGroupIngressArgs(protocol="-1", from_port=0, to_port=0, self=True)], egress=[]'
)
ENV = '"TRAINYARD_MODE": mode,'
PLANTS = [
    aws("imdsv2-only", "nodes.py", 'http_tokens="required"', 'http_tokens="optional"'),
    aws("imdsv2-only", "image.py", 'http_tokens="required"', 'http_tokens="optional"'),
    aws("metadata-one-hop", "nodes.py", "http_put_response_hop_limit=1", "http_put_response_hop_limit=2"),
    aws("metadata-one-hop", "image.py", ", http_put_response_hop_limit=1", ""),
    aws(
        "own-launch-template",
        "nodes.py",
        "InstanceLaunchTemplateArgs(id=template.id, version=template.latest_version.apply(str))",
        'InstanceLaunchTemplateArgs(id="lt-0123456789abcdef0", version="3")',
    ),
    aws("volumes-encrypted", "nodes.py", 'encrypted="true"', 'encrypted="false"'),
    aws("volumes-encrypted", "image.py", "encrypted=True, ", ""),
    aws("volumes-die-with-node", "nodes.py", 'delete_on_termination="true"', 'delete_on_termination="false"'),
    aws("volumes-die-with-node", "image.py", "delete_on_termination=True", "delete_on_termination=False"),
    aws("ami-pinned", "image.py", "ami=newest.value if newest", 'ami="resolve:ssm:" + UBUNTU if newest'),
    aws("ami-does-not-drift", "image.py", 'KEPT = ["ami", ', "KEPT = ["),
    aws("no-ssh-from-anywhere", "security.py", ADMIN, 'cidr_ipv4="0.0.0.0/0",'),
    aws("no-ssh-from-anywhere", "security.py", ADMIN, 'cidr_ipv6="0::0/0",'),
    aws("no-ssh-from-anywhere", "security.py", "referenced_security_group_id=nodes.id,", 'cidr_ipv4="0.0.0.0/0",'),
    aws(
        "nothing-from-anywhere",
        "security.py",
        SSH_RULE,
        'cidr_ipv6="::/0",\n        ip_protocol="tcp",\n        from_port=443,\n        to_port=8443,',
    ),
    aws("security-group-descriptions", "security.py", 'description="SSH from the operator network (adminCidr)",', ""),
    aws("default-group-closed", "security.py", CLOSED, OPENED),
    aws("default-group-closed", "security.py", "vpc_id=network.vpc.id, ingress=[]", 'vpc_id="vpc-1", ingress=[]'),
    aws("flow-logs-as-configured", "network.py", 'traffic_type="ALL"', 'traffic_type="ACCEPT"', flowLogs="true"),
    aws("flow-logs-as-configured", "ground.py", "if settings.cloud.flow_logs:", "if False:", flowLogs="true"),
    aws("bucket-public-access-blocked", "data.py", "restrict_public_buckets=True", "restrict_public_buckets=False"),
    aws("bucket-encrypted", "data.py", 'by_default(sse_algorithm="AES256")', "None"),
    aws(
        "bucket-versioned",
        "data.py",
        'BucketVersioningVersioningConfigurationArgs(status="Enabled")',
        'BucketVersioningVersioningConfigurationArgs(status="Suspended")',
    ),
    aws("bucket-uploads-aborted", "data.py", "days_after_initiation=UPLOAD_DAYS", "days_after_initiation=None"),
    aws("bucket-tls-only", "data.py", '"aws:SecureTransport": "false"', '"aws:SecureTransport": "true"'),
    aws("bucket-tls-only", "data.py", '[bucket.arn, pulumi.Output.concat(bucket.arn, "/*")]', "[bucket.arn]"),
    aws(
        "bucket-policy-not-public",
        "data.py",
        '"Statement": [refuse]',
        '"Statement": [refuse, {**refuse, "Effect": "Allow", "Condition": {}}]',
    ),
    aws("iam-no-stars", "access.py", '"Resource": arn,', '"Resource": "*",'),
    aws("iam-no-stars", "access.py", '("s3:GetObject", ', '("s3:*", '),
    aws("roles-for-services", "access.py", '{"Service": "ec2.amazonaws.com"}', '{"AWS": "*"}'),
    aws("iam-no-stars", "access.py", '"ssm:UpdateInstanceInformation",', '"ssm:GetParameter",'),
    aws("iam-no-stars", "access.py", '{"cloudwatch:namespace": METRICS}', "{}", monitoring="true"),
    aws("roles-for-this-account", "network.py", '{"aws:SourceAccount": account}', "{}", flowLogs="true"),
    aws("no-administrators", "access.py", *attached("AdministratorAccess")),
    aws("no-parameters-of-the-account", "access.py", *attached("AmazonSSMManagedInstanceCore")),
    aws("tagged", "provider.py", ", default_tags=default_tags, opts=opts)", ", opts=opts)"),
    aws("volumes-tagged", "image.py", "volume_tags={**tags(settings), **titled", "volume_tags={**titled"),
    aws("volumes-tagged", "nodes.py", "volume_tags={**tags(settings), **titled(settings, called)},", ""),
    Plant(
        "no-secret-in-user-data",
        "aws-xeon",
        "infra/user_data.py",
        ENV,
        f'{ENV} "HF_TOKEN": "hf_" + "a1B2" * 9,',
    ),
    aws(
        "no-secret-in-user-data",
        "nodes.py",
        "check_user_data(text, called)",
        f'check_user_data(text + "# {KEY}", called)',
    ),
    azure(
        "no-passwords", "machine.py", "disable_password_authentication=True", "disable_password_authentication=False"
    ),
    azure(
        "no-passwords", "machine.py", "admin_username=USER,", 'admin_username=USER, admin_password="correct horse 1",'
    ),
    azure("trusted-launch", "machine.py", 'security_type="TrustedLaunch",', ""),
    azure("trusted-launch", "machine.py", "secure_boot_enabled=True", "secure_boot_enabled=False"),
    azure(
        "disks-managed",
        "machine.py",
        "managed_disk=compute.ManagedDiskParametersArgs(storage_account_type=spec.storage),",
        'vhd=compute.VirtualHardDiskArgs(uri="https://x.blob.core.windows.net/vhds/y.vhd"),',
    ),
    azure("disks-die-with-node", "machine.py", 'delete_option="Delete",', ""),
    azure("image-version-pinned", "image.py", "sku=sku, version=version)", 'sku=sku, version="latest")'),
    azure(
        "subnets-behind-a-firewall",
        "network.py",
        "network_security_group=network.NetworkSecurityGroupArgs(id=group.id),",
        "",
    ),
    azure("no-ssh-from-anywhere", "network.py", NSG_SSH, '"Tcp", "*", subnet, "22"'),
    azure("no-ssh-from-anywhere", "network.py", NSG_SSH, '"*", "Internet", subnet, "20-30"'),
    azure("no-ssh-from-anywhere", "network.py", NSG_SSH, '"Tcp", "::/0", subnet, "*"'),
    azure(
        "no-ssh-from-anywhere",
        "network.py",
        "source_address_prefix=source,",
        'source_address_prefixes=[source, "Any"],',
    ),
    azure("nothing-from-anywhere", "network.py", NSG_SSH, '"Tcp", "Internet", subnet, "443"'),
    azure(
        "flow-logs-as-configured",
        "flow_logs.py",
        "enabled=True,\n        format",
        "enabled=False,\n        format",
        flowLogs="true",
    ),
    azure(
        "flow-logs-as-configured",
        "flow_logs.py",
        "type=network.ResourceIdentityType.USER_ASSIGNED, ",
        "",
        flowLogs="true",
    ),
    azure("storage-https-only", "data.py", "enable_https_traffic_only=True", "enable_https_traffic_only=False"),
    azure("storage-tls-1.2", "data.py", '"TLS1_2"', '"TLS1_0"'),
    azure("storage-no-public-blobs", "data.py", "allow_blob_public_access=False,", ""),
    azure("storage-no-shared-key", "data.py", "allow_shared_key_access=False", "allow_shared_key_access=True"),
    azure("storage-closed-by-default", "data.py", "storage.DefaultAction.DENY", "storage.DefaultAction.ALLOW"),
    azure("blobs-can-be-had-back", "data.py", "is_versioning_enabled=True", "is_versioning_enabled=False"),
    azure(
        "blobs-can-be-had-back",
        "data.py",
        "container_delete_retention_policy=storage.DeleteRetentionPolicyArgs(enabled=True, days=KEPT_DAYS),",
        "",
    ),
    azure("old-versions-deleted", "data.py", "rules = [_old_versions()]", "rules = []", flowLogs="true"),
    azure("containers-private", "data.py", "storage.PublicAccess.NONE", "storage.PublicAccess.BLOB"),
    azure(
        "no-privileged-roles",
        "access.py",
        "ba92f5b4-2d11-453d-a403-e96b0029c9fe",
        "b24988ac-6180-42a0-ab88-20f7382dd24c",
    ),
    azure(
        "role-definitions-no-stars",
        "access.py",
        '"Microsoft.Compute/virtualMachines/deallocate/action"',
        '"Microsoft.Compute/*"',
    ),
    azure("tagged", "base.py", "return naming.tags(self.settings)", "return {naming.STACK_TAG: self.settings.stack}"),
    azure(
        "tagged",
        "base.py",
        "return naming.tags(self.settings)",
        'return {**naming.tags(self.settings), naming.MAX_HOURS_TAG: "soon"}',
    ),
    azure("no-secret-in-user-data", "machine.py", "custom_data=spec.user_data", f'custom_data="{KEY}"'),
]
EVERY_WAY = [
    {},
    {"flowLogs": "true"},
    {"publicNodes": "all", "spot": "true"},
    {"keepData": "true", "replaceNodes": "true"},
    {"nodes": "1"},
]
"""Settings that the program is judged with as it stands."""
OF_ONE = {"aws-xeon": [{"monitoring": "true"}, {"capacityReservation": "none"}]}
"""Those that only one cluster has so far."""


def ways(cluster: str) -> list[dict[str, str]]:
    return [*EVERY_WAY, *OF_ONE.get(cluster, [])]


def needs(cluster: str) -> None:
    pytest.importorskip(SDKS[cluster])


@dataclass(frozen=True)
class Results:
    plants: list[dict[str, list[str]]]
    """What was found in each of PLANTS; nothing for those of another cluster."""
    untouched: dict[str, dict[str, list[str]]]
    """What was found in the program as it stands, with each of EVERY_WAY."""


def judged(cluster: str, copy: Path, key_file: Path) -> Results:
    plants = [plant for plant in PLANTS if plant.cluster == cluster]
    asked: list[dict[str, Any]] = [
        {"cluster": cluster, "keys": {"nodes": "2", **plant.keys}, "edits": [[plant.file, plant.old, plant.new]]}
        for plant in plants
    ]
    asked += [{"cluster": cluster, "keys": keys, "edits": []} for keys in ways(cluster)]
    for one in asked:
        one["keys"] = {**one["keys"], "publicKey": str(key_file)}
    argv = [sys.executable, str(copy / "tests" / "support" / "planted_violations.py"), str(copy)]
    done = subprocess.run(argv, input=json.dumps(asked), cwd=copy, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found = iter(json.loads(done.stdout.splitlines()[-1]))
    return Results(
        [next(found) if plant in plants else {} for plant in PLANTS], {str(keys): next(found) for keys in ways(cluster)}
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, key_file: Path) -> Callable[[str], Results]:
    """What the pack has to say of a cluster, in a copy of the checkout; asked for once."""

    @functools.cache
    def of(cluster: str) -> Results:
        return judged(cluster, copy_of(ROOT, tmp_path_factory.mktemp("copy")), key_file)

    return of


def called(index: int) -> str:
    return f"{PLANTS[index].cluster}-{PLANTS[index].rule}-{index}"


@pytest.mark.parametrize("index", range(len(PLANTS)), ids=called)
def test_exactly_the_rule_of_a_planted_violation_finds_it(results: Callable[[str], Results], index: int) -> None:
    plant = PLANTS[index]
    needs(plant.cluster)
    found = results(plant.cluster).plants[index]
    assert set(found) == {plant.rule}, found
    assert not any("undecided" in what for what in found[plant.rule])


@pytest.mark.parametrize("cluster", KINDS)
def test_the_program_as_it_stands_passes_every_rule(results: Callable[[str], Results], cluster: str) -> None:
    needs(cluster)
    assert results(cluster).untouched == {str(keys): {} for keys in ways(cluster)}


def test_every_rule_has_a_plant() -> None:
    assert {plant.rule for plant in PLANTS} == {rule.name for rule in (*pack.RULES, *pack.STACK_RULES)}
