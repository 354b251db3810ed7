"""The account's pre-flight: AWS against moto over HTTP, Azure against its stand-in; each failure with its mend."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import azure_subscription
import boto3
import moto_cloud
import pytest
from azure_subscription import ROOT, SUBSCRIPTION, Cloud, Who
from http_server import Answer, serve
from invoke.context import Context
from invoke.exceptions import Exit

from fabfile import check
from fabfile.stacks import pulumi_cli
from infra.clouds import account
from infra.clouds.aws import account as aws
from infra.clouds.aws import api
from infra.clouds.azure import account as azure
from infra.clouds.azure import image
from infra.clouds.azure.arm import Arm
from infra.clouds.azure.image import DEFAULT_BASE
from infra.clouds.finding import Finding, to_json
from infra.config import stack_file
from infra.config.settings import Settings, load
from infra.errors import UsageError

REPO = Path(__file__).resolve().parents[2]
Make = Callable[..., Settings]
SELECT = "pulumi stack select --create aws-xeon"
"""Before the first `up`, Pulumi knows no such stack, and would set none of its keys."""


@pytest.fixture
def make(good: dict[str, str]) -> Make:
    def settings(stack: str, **changes: str) -> Settings:
        mine = {"adminCidr": "203.0.113.0/24", "owner": "ada", "alertEmail": "ada@example.org"}
        return load(stack, {**stack_file.read(stack), **mine, "publicKey": good["publicKey"], **changes})

    return settings


@contextmanager
def answering(body: bytes, kind: str = "text/plain") -> Iterator[str]:
    """A server that says the same to everybody; its URL."""
    with serve(lambda _: Answer(body=body, headers={"Content-Type": kind})) as server:
        yield server.url


def states(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.state for finding in findings}


def finding(findings: list[Finding], check: str) -> Finding:
    (found,) = [entry for entry in findings if entry.check == check]
    return found


# --- where SSH comes from ---


def test_the_operators_address_is_compared(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for mine, expected in (("203.0.113.7", "ok"), ("198.51.100.4", "failed"), ("2001:db8::1", "undecided")):
        with answering(f"{mine}\n".encode()) as url:
            monkeypatch.setenv("TRAINYARD_ADDRESS_ECHO", url)
            found = account.address(make("aws-xeon"))
        assert found.state == expected, found
        if expected == "failed":
            assert found.mend == f"{SELECT} && pulumi config set adminCidr 198.51.100.4/32 --stack aws-xeon"
    monkeypatch.setenv("TRAINYARD_ADDRESS_ECHO", "http://127.0.0.1:1")
    found = account.address(make("aws-xeon"))
    assert found.state == "undecided" and "cannot be reached" in found.said


def test_a_local_stack_needs_no_account(good: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="is of kind local: that needs no account"):
        account.check(load("local", good))


# --- AWS ---


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with moto_cloud.aws(monkeypatch) as endpoint:
        base = boto3.client("ec2").describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
        yield base
    assert endpoint


@contextmanager
def quota(monkeypatch: pytest.MonkeyPatch, limit: float) -> Iterator[None]:
    """Service Quotas' answer, as its documentation has it: moto knows no quotas of EC2's."""
    answer = json.dumps({"Quota": {"ServiceCode": "ec2", "QuotaCode": "L-1216C47A", "Value": limit}})
    with answering(answer.encode(), "application/x-amz-json-1.1") as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SERVICE_QUOTAS", url)
        api.client.cache_clear()
        yield


def test_an_account_that_is_fit(make: Make, moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with quota(monkeypatch, 104):
        found = aws.check(make("aws-xeon", baseImage=moto))
    undecided = finding(found, "rights")  # moto does not simulate policies: said, not taken for a yes
    assert undecided.state == "undecided" and undecided.mend
    assert {name for name, state in states(found).items() if state == "ok"} == {
        *("sign-in", "region", "type", "zone", "quota", "image", "launch")
    }
    said = "3 nodes and the image's builder (m7i.2xlarge) need 104 vCPUs; the On-Demand limit is 104, others use 0"
    assert finding(found, "quota").said == said
    assert boto3.client("ec2").describe_instances()["Reservations"] == [], "nothing was launched"


def test_a_quota_counts_what_others_run_and_not_the_stacks_own(
    make: Make, moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch: dict[str, Any] = {"ImageId": moto, "InstanceType": "m7i.8xlarge", "MinCount": 1, "MaxCount": 1}
    ec2 = boto3.client("ec2")
    ec2.run_instances(**launch, TagSpecifications=moto_cloud.tagged("instance", "aws-xeon"))
    ec2.run_instances(**{**launch, "InstanceType": "m6i.4xlarge"})
    with quota(monkeypatch, 96):
        found = finding(aws.check(make("aws-xeon", baseImage=moto)), "quota")
    assert found.state == "failed" and found.said.endswith("others use 16")
    assert "--quota-code L-1216C47A --desired-value 120 --region us-east-1" in found.mend


def test_the_builder_of_spot_nodes_is_judged_by_the_other_quota(
    make: Make, moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New accounts have five vCPUs on demand: too few for a builder, however many Spot has."""
    asked: list[str] = []
    limits = {"L-34B43A08": 96.0, "L-1216C47A": 5.0}

    class Quotas:
        def get_service_quota(self, ServiceCode: str, QuotaCode: str) -> dict[str, Any]:
            asked.append(QuotaCode)
            return {"Quota": {"Value": limits[QuotaCode]}}

    real = api.client
    monkeypatch.setattr(
        api, "client", lambda name, *where: Quotas() if name == "service-quotas" else real(name, *where)
    )
    found = aws.check(make("aws-xeon", baseImage=moto, spot="true"))
    assert finding(found, "quota").said == "3 nodes need 96 vCPUs; the Spot limit is 96, others use 0"
    builder = finding(found, "builder")
    assert builder.state == "failed" and "(m7i.2xlarge) needs 8 vCPUs; the On-Demand limit is 5" in builder.said
    assert "--quota-code L-1216C47A --desired-value 8 " in builder.mend
    asked.clear()
    aws.check(make("aws-xeon", image=baked(moto), spot="true"))
    assert asked == ["L-34B43A08"], "no builder where an image is given"


def baked(base: str, *tags: dict[str, str]) -> str:
    """An image of this account."""
    ec2 = boto3.client("ec2")
    machine = ec2.run_instances(ImageId=base, InstanceType="m7i.large", MinCount=1, MaxCount=1)["Instances"][0]
    made = ec2.create_image(InstanceId=machine["InstanceId"], Name=f"image-{len(tags)}")["ImageId"]
    ec2.terminate_instances(InstanceIds=[machine["InstanceId"]])
    if tags:
        ec2.create_tags(Resources=[made], Tags=list(tags))
    return str(made)


def test_an_image_is_checked_as_up_will(make: Make, moto: str) -> None:
    """Its own, and one that Trainyard has baked: not any that boots."""
    ours = baked(moto, {"Key": "trainyard-image", "Value": "0123456789abcdef"})
    assert finding(aws.check(make("aws-xeon", image=ours)), "image").state == "ok"
    untagged = finding(aws.check(make("aws-xeon", image=baked(moto))), "image")
    assert untagged.state == "failed" and "it has no tag trainyard-image" in untagged.said
    theirs = finding(aws.check(make("aws-xeon", image=moto)), "image")
    assert theirs.state == "failed" and "this account has no such image in us-east-1" in theirs.said


def test_a_quota_that_cannot_be_asked_is_undecided(make: Make, moto: str) -> None:
    found = finding(aws.check(make("aws-xeon", baseImage=moto)), "quota")
    assert found.state == "undecided" and "servicequotas" in found.mend


def test_a_zone_that_does_not_offer_the_type_names_those_that_do(make: Make, moto: str) -> None:
    settings = make("aws-xeon", zone="use1-az3", baseImage=moto)
    found = finding(aws.check(settings), "zone")
    assert found.state == "failed" and found.said.startswith("use1-az3 does not offer m7i.8xlarge; these do: use1-az")
    assert found.mend.startswith(f"{SELECT} && pulumi config set zone use1-az")
    with pytest.raises(
        UsageError, match=r"^zone: use1-az3 does not offer m7i\.8xlarge; .*; mend: pulumi stack select"
    ) as e:
        account.cheap(settings)
    assert "\n" not in str(e.value)
    assert set(aws.offers(settings)) >= {"use1-az6"} and "use1-az3" not in aws.offers(settings)


def test_a_type_that_does_not_exist_ends_up_before_anything_is_made(make: Make, moto: str) -> None:
    settings = make("aws-xeon", instanceType="m7i.9xlarge")
    assert finding(aws.check(settings), "type").said == "us-east-1 has no instance type m7i.9xlarge"
    with pytest.raises(UsageError, match=r"^type: us-east-1 has no instance type m7i\.9xlarge"):
        account.cheap(settings)


def test_a_region_and_an_image_that_are_not(make: Make, moto: str) -> None:
    found = aws.check(make("aws-xeon", region="us-east-9", zone="use9-az1"))
    assert found[-1].said == "AWS has no region us-east-9"
    image = finding(aws.check(make("aws-xeon", image="ami-0123456789abcdef0")), "image")
    assert image.state == "failed" and image.mend == f"{SELECT} && pulumi config set image bake --stack aws-xeon"


def test_without_credentials_the_list_ends_there(make: Make, moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    boto3.setup_default_session()
    api.client.cache_clear()
    (only,) = aws.check(make("aws-xeon"))
    assert (only.check, only.state) == ("sign-in", "failed") and "aws sso login" in only.mend
    account.cheap(make("aws-xeon", instanceType="m7i.9xlarge"))  # nobody to ask: `up` says so itself


def test_the_role_behind_a_session_is_what_iam_simulates() -> None:
    assert aws._source("arn:aws:sts::1234:assumed-role/Admin/ada") == "arn:aws:iam::1234:role/Admin"
    assert aws._source("arn:aws:iam::1234:user/ada") == "arn:aws:iam::1234:user/ada"


# --- Azure ---

COMPUTE = f"{ROOT}/providers/Microsoft.Compute"


@pytest.fixture
def place() -> Iterator[tuple[Arm, Cloud]]:
    with azure_subscription.azure() as (endpoint, cloud):
        fit(cloud)
        yield Arm(SUBSCRIPTION, endpoint=endpoint, who=Who(), wait=0), cloud  # type: ignore[arg-type]


def fit(cloud: Cloud) -> None:
    """A subscription in which the default stack can be made."""
    cloud.things[ROOT] = {"type": "subscription", "displayName": "lab", "state": "Enabled"}
    for name in azure.NAMESPACES:
        cloud.things[f"{ROOT}/providers/{name}".lower()] = {"type": "provider", "registrationState": "Registered"}
    cloud.lists[f"{ROOT}/locations"] = [{"name": name} for name in ("westus", "eastus2", "eastus", "northeurope")]
    cloud.lists[f"{COMPUTE}/skus"] = [*(sku(f"Standard_D{n}s_v6") for n in (2, 4, 8, 16)), sku("Standard_D32s_v6")]
    cloud.lists[f"{COMPUTE}/locations/eastus/usages"] = [
        usage("cores", 4, 350),
        usage("lowPriorityCores", 0, 3),
        usage("standardDSv6Family", 4, 104),
    ]
    publisher, offer, name, version = DEFAULT_BASE.split(":")
    images = f"{COMPUTE}/locations/eastus/publishers/{publisher}/artifacttypes/vmimage/offers/{offer}/skus/{name}"
    cloud.lists[f"{images}/versions"] = [{"name": version}]
    cloud.lists[f"{ROOT}/providers/Microsoft.Authorization/permissions"] = [{"actions": ["*"], "notActions": []}]


def sku(name: str, **more: Any) -> dict[str, Any]:
    return {
        "resourceType": "virtualMachines",
        "name": name,
        "family": "standardDSv6Family",
        "locations": ["eastus"],
        "locationInfo": [{"location": "eastus", "zones": ["1", "2", "3"]}],
        "capabilities": [{"name": "vCPUs", "value": "".join(filter(str.isdigit, name.partition("_v")[0]))}],
        "restrictions": [],
        **more,
    }


def usage(name: str, used: int, limit: int) -> dict[str, Any]:
    return {"name": {"value": name, "localizedValue": name}, "currentValue": used, "limit": limit}


def test_a_subscription_that_is_fit(make: Make, place: tuple[Arm, Cloud]) -> None:
    found = azure.check(make("azure-xeon"), place[0])
    assert states(found) == dict.fromkeys(("sign-in", "providers", "region", "type", "quota", "image", "rights"), "ok")
    said = "3 nodes and the builder need 100 of standardDSv6Family (4 of 104 used), 100 of cores (4 of 350 used)"
    assert finding(found, "quota").said == said


@pytest.mark.parametrize(
    "check, changes, said, mend",
    [
        ("region", {"region": "moonbase"}, "no region moonbase", "config set region eastus"),
        ("type", {"zone": "4"}, "zone 4 of eastus does not offer", "config set zone 1"),
        ("quota", {"nodes": "4"}, "4 nodes and the builder need 132 of standardDSv6Family (4 of 104", "ask for 136"),
        ("quota", {"spot": "true"}, "96 of lowPriorityCores (0 of 3 used", "96 of lowPriorityCores in eastus"),
        ("image", {"baseImage": "Canonical:nothing:server:1.0.0"}, "has no such image", "config set baseImage"),
    ],
)
def test_what_is_wrong_on_azure_comes_with_its_mend(
    check: str, changes: dict[str, str], said: str, mend: str, make: Make, place: tuple[Arm, Cloud]
) -> None:
    found = finding(azure.check(make("azure-xeon", **changes), place[0]), check)
    assert found.state == "failed" and said in found.said and mend in found.mend, found


def machine(cloud: Cloud, name: str, size: str, **more: Any) -> None:
    group = "resourceGroups/trainyard-azure-xeon"
    path = f"{group}/providers/Microsoft.Compute/virtualMachines"
    listed = cloud.lists.setdefault(f"{cloud.add(group, 'azure-xeon')}/{path.partition('/')[2].partition('/')[2]}", [])
    properties = {"hardwareProfile": {"vmSize": size}, **more}
    listed.append({"name": f"trainyard-azure-xeon-{name}", "location": "eastus", "properties": properties})


def test_a_cluster_that_runs_has_the_cores_that_it_needs(make: Make, place: tuple[Arm, Cloud]) -> None:
    """Its own machines are no others'; a builder counts, and does while it is deallocated."""
    arm, cloud = place
    settings = make("azure-xeon")
    for index in (1, 2, 3):
        machine(cloud, f"node{index}", "Standard_D32s_v6")
    machine(cloud, f"builder-{image.key(settings)[:12]}", "Standard_D4s_v6")
    usages = cloud.lists[f"{COMPUTE}/locations/eastus/usages"]
    usages[:] = [usage("cores", 104, 350), usage("lowPriorityCores", 0, 3), usage("standardDSv6Family", 104, 104)]
    found = finding(azure.check(settings, arm), "quota")
    assert found.state == "ok" and "(104 of 104 used, 100 of them by this stack)" in found.said
    found = finding(azure.check(make("azure-xeon", nodes="4"), arm), "quota")
    assert found.state == "failed" and "ask for 136 of standardDSv6Family" in found.mend


def test_another_images_builder_is_there_until_the_new_one_is_done(make: Make, place: tuple[Arm, Cloud]) -> None:
    arm, cloud = place
    machine(cloud, "builder-0123456789ab", "Standard_D4s_v6")
    cloud.lists[f"{COMPUTE}/locations/eastus/usages"][2] = usage("standardDSv6Family", 4, 103)
    assert "ask for 104" in finding(azure.check(make("azure-xeon"), arm), "quota").mend


def test_spot_nodes_are_baked_for_on_demand(make: Make, place: tuple[Arm, Cloud]) -> None:
    arm, cloud = place
    usages = cloud.lists[f"{COMPUTE}/locations/eastus/usages"]
    usages[1:] = [usage("lowPriorityCores", 96, 96), usage("standardDSv6Family", 0, 3)]
    for index in (1, 2, 3):
        machine(cloud, f"node{index}", "Standard_D32s_v6", priority="Spot")
    found = finding(azure.check(make("azure-xeon", spot="true"), arm), "quota")
    assert found.state == "failed" and "ask for 4 of standardDSv6Family" in found.mend


def test_a_size_that_this_subscription_may_not_have(make: Make, place: tuple[Arm, Cloud]) -> None:
    arm, cloud = place
    refused = [{"type": "Location", "reasonCode": "NotAvailableForSubscription"}]
    cloud.lists[f"{COMPUTE}/skus"] = [
        sku("Standard_D32s_v6", restrictions=refused),
        sku("Standard_D32s_v6", locations=["westus"]),
    ]
    assert azure.offers(make("azure-xeon"), arm) == ["westus"]
    cloud.lists[f"{COMPUTE}/skus"].pop()
    (found,) = azure.cheap(make("azure-xeon"), arm)
    assert found.said == "Standard_D32s_v6 is not to be had in eastus: NotAvailableForSubscription"
    (found,) = azure.cheap(make("azure-xeon", instanceType="Standard_D33s_v6"), arm)
    assert found.said == "eastus has no size Standard_D33s_v6"


def test_rights_and_providers_that_lack(make: Make, place: tuple[Arm, Cloud]) -> None:
    arm, cloud = place
    contributor = {"actions": ["*"], "notActions": ["Microsoft.Authorization/*/Write"]}
    cloud.lists[f"{ROOT}/providers/Microsoft.Authorization/permissions"] = [contributor]
    cloud.things[f"{ROOT}/providers/microsoft.compute"]["registrationState"] = "NotRegistered"
    found = azure.check(make("azure-xeon"), arm)
    assert finding(found, "rights").said.startswith("you may not Microsoft.Authorization/roleAssignments/write")
    assert finding(found, "providers").mend == "az provider register --wait --namespace Microsoft.Compute"


@pytest.mark.parametrize("flow_logs, state", [("true", "failed"), ("false", "ok")])
def test_flow_logs_need_one_more_provider(make: Make, place: tuple[Arm, Cloud], flow_logs: str, state: str) -> None:
    arm, cloud = place
    cloud.things[f"{ROOT}/providers/microsoft.insights"] = {"type": "provider", "registrationState": "NotRegistered"}
    found = azure.check(make("azure-xeon", flowLogs=flow_logs), arm)
    assert finding(found, "providers").state == state
    if flow_logs == "true":
        assert finding(found, "providers").mend == "az provider register --wait --namespace Microsoft.Insights"


def test_a_subscription_that_is_not_there_or_does_not_answer(make: Make, place: tuple[Arm, Cloud]) -> None:
    arm, cloud = place
    del cloud.things[ROOT]
    (only,) = azure.check(make("azure-xeon"), arm)
    assert (only.check, only.state) == ("sign-in", "failed")
    nowhere = Arm(SUBSCRIPTION, endpoint="http://127.0.0.1:1", who=Who(), retries=0)  # type: ignore[arg-type]
    (only,) = azure.check(make("azure-xeon"), nowhere)
    assert (only.check, only.state) == ("sign-in", "undecided")


def test_one_image_by_id_in_another_region_is_told(make: Make, place: tuple[Arm, Cloud]) -> None:
    arm, cloud = place
    image = (
        f"{ROOT}/resourceGroups/g/providers/Microsoft.Compute/galleries/trainyard/images/"
        "trainyard-0123456789abcdef/versions/1.0.0"
    )
    cloud.things[image.lower()] = {
        "type": "version",
        "properties": {
            "provisioningState": "Succeeded",
            "publishingProfile": {"targetRegions": [{"name": "West US"}]},
        },
    }
    settings = make("azure-xeon", image=image)
    found = finding(azure.check(settings, arm), "image")
    assert found.state == "failed" and "in westus, not in eastus" in found.said
    elsewhere = replace(settings, image=image.replace("1.0.0", "2.0.0"))
    assert "404 ResourceNotFound" in finding(azure.check(elsewhere, arm), "image").said


# --- the verb ---


def test_the_verb_prints_a_line_for_each_and_ends_with_the_first_mend(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = [
        Finding("sign-in", "ok", "account 1"),
        Finding("rights", "undecided", "not simulated", "look there"),
        Finding("zone", "failed", "use1-az3 does not offer it", "pulumi config set zone use1-az1 --stack yard"),
    ]
    monkeypatch.setattr(pulumi_cli, "ask", lambda _argv: to_json(told))
    with pytest.raises(Exit) as failed:
        check(Context(), stack="yard", account=True)
    assert failed.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "warn  rights      not simulated; mend: look there"
    assert lines[-1] == "next: pulumi config set zone use1-az1 --stack yard"
    told.pop()
    check(Context(), stack="yard", account=True)  # what is undecided keeps nobody
    assert capsys.readouterr().out.splitlines()[-1].startswith("next: fab up")
    with pytest.raises(Exit, match="not of an inventory"):
        check(Context(), inventory="nodes.json", account=True)


def test_the_program_answers_in_json(make: Make, moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `fab` runs it, in a process of its own; a stack without an owner is refused before anybody is asked."""
    done = subprocess.run(
        [sys.executable, "-m", "infra.clouds.account", "aws-xeon"],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1
