"""The account's pre-flight for EKS: its quotas, the versions that are pinned, the image, the operator's definition."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import moto_cloud
import pytest
from account_checks import Make, answering, finding

from infra import training_operator
from infra.clouds.aws import account, api, eks
from infra.errors import OperationError

pytest_plugins = ["account_fixtures"]


def addons(**changed: str) -> bytes:
    """EKS's answer about add-ons: the pinned versions, but for those that are `changed`."""
    versions = {**eks.ADDONS, **{name.replace("_", "-"): version for name, version in changed.items()}}
    listed = [{"addonName": name, "addonVersions": [{"addonVersion": v}]} for name, v in versions.items() if v]
    return json.dumps({"addons": listed}).encode()


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An account with a limit of 200 vCPUs for everything; call it with what EKS says of add-ons."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(training_operator, "definition", lambda: "kind: CustomResourceDefinition")
    quota = json.dumps({"Quota": {"ServiceCode": "ec2", "QuotaCode": "L-1216C47A", "Value": 200}}).encode()
    image = json.dumps({"Parameter": {"Name": eks.IMAGE, "Value": "ami-12c6146b"}}).encode()
    json_1_1 = "application/x-amz-json-1.1"
    with (
        moto_cloud.aws(monkeypatch),
        answering(quota, json_1_1) as quotas,
        answering(image, json_1_1) as parameters,
    ):
        monkeypatch.setenv("AWS_ENDPOINT_URL_SERVICE_QUOTAS", quotas)
        monkeypatch.setenv("AWS_ENDPOINT_URL_SSM", parameters)

        def check(settings: Any, said: bytes) -> list[Any]:
            with answering(said, "application/json") as url:
                monkeypatch.setenv("AWS_ENDPOINT_URL_EKS", url)
                api.client.cache_clear()
                return account.check(settings)

        yield check


def test_workers_and_system_nodes_count_in_limits_of_their_own(moto: Any, make: Make) -> None:
    found = moto(make("aws-eks"), addons())
    said = "2 nodes need 192 vCPUs; the On-Demand limit of P instances is 200, others use 0"
    assert finding(found, "quota").detail == said
    assert finding(found, "system").detail.startswith("2 system nodes (m7i.large) need 4 vCPUs; the On-Demand limit is")
    more = finding(moto(make("aws-eks", nodes="4"), addons()), "quota")
    assert more.state == "failed" and "--quota-code L-417A185B --desired-value 384" in more.mend
    assert "builder" not in {one.check for one in found}, "nothing is baked"


def test_the_pinned_versions_must_be_there(moto: Any, make: Make) -> None:
    good = finding(moto(make("aws-eks"), addons()), "versions")
    assert (good.state, good.detail) == ("ok", "Kubernetes 1.35 with its 5 add-ons")
    gone = finding(moto(make("aws-eks"), addons(coredns="v1.99.0-eksbuild.1")), "versions")
    assert gone.state == "failed" and gone.mend == "infra/clouds/aws/eks.py"
    assert gone.detail == (f"EKS has no coredns {eks.ADDONS['coredns']} for Kubernetes 1.35; it has v1.99.0-eksbuild.1")
    none = finding(moto(make("aws-eks"), b'{"addons": []}'), "versions")
    assert none.detail == "EKS has no Kubernetes 1.35 in us-east-1"


def test_the_image_is_ekss_own(moto: Any, make: Make) -> None:
    found = moto(make("aws-eks"), addons())
    assert finding(found, "image").detail.startswith("ami-12c6146b (EKS's newest with NVIDIA's driver")
    assert finding(found, "launch").state == "ok"


def test_an_operator_that_cannot_be_had_is_said_before_anything_is_made(
    moto: Any, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> str:
        raise OperationError("the training operator's definition of PyTorchJob, https://x: timed out")

    assert finding(moto(make("aws-eks"), addons()), "operator").state == "ok"
    monkeypatch.setattr(training_operator, "definition", refuse)
    found = finding(moto(make("aws-eks"), addons()), "operator")
    assert found.state == "undecided" and "timed out" in found.detail and found.mend.startswith("curl ")
