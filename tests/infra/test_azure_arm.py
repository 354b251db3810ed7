"""The client of Azure's management API: whose credentials it uses, and where a token goes."""

from __future__ import annotations

import json
import subprocess

import http_server
import pytest
from azure_subscription import SUBSCRIPTION, Who
from http_server import Answer, Asked

from infra.clouds.azure import credentials
from infra.clouds.azure.arm import Arm, ArmError
from infra.clouds.azure.credentials import subscription
from infra.errors import UsageError


@pytest.mark.parametrize(
    "environment, kind",
    [
        ({}, "AzureCliCredential"),
        ({"ARM_TENANT_ID": "t", "ARM_CLIENT_ID": "c", "ARM_CLIENT_SECRET": "s"}, "ClientSecretCredential"),
        ({"ARM_USE_MSI": "true"}, "ManagedIdentityCredential"),
    ],
)
def test_the_account_is_the_one_of_pulumis_provider(
    environment: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ARM_TENANT_ID", "ARM_CLIENT_ID", "ARM_CLIENT_SECRET", "ARM_CLIENT_CERTIFICATE_PATH", "ARM_USE_MSI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert type(credentials.credential()).__name__ == kind


def test_an_az_that_hangs_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ARM_SUBSCRIPTION_ID", "AZURE_SUBSCRIPTION_ID"):
        monkeypatch.delenv(name, raising=False)

    def hang(argv: list[str], *, timeout: float, **_more: object) -> None:
        raise subprocess.TimeoutExpired(argv, timeout)

    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("subprocess.run", hang)
    with pytest.raises(UsageError, match=r"^No Azure subscription: az does not answer within 60 s; az login"):
        subscription()


ELSEWHERE = "https://management.azure.example/operations/1"


@pytest.mark.parametrize("header", ["", "Azure-AsyncOperation", "Location"])
def test_a_token_goes_to_no_other_host(header: str) -> None:
    def answer(asked: Asked) -> Answer:
        if asked.method == "DELETE":
            return Answer(202, headers={header: ELSEWHERE})
        return Answer(body=json.dumps({"value": [], "nextLink": ELSEWHERE}).encode())

    with http_server.serve(answer) as server:
        arm = Arm(SUBSCRIPTION, endpoint=server.url, who=Who(), wait=0)
        with pytest.raises(ArmError, match="not a link of"):
            arm.delete("/x", "2024-05-01") if header else arm.every("/x", "2024-05-01")
        assert len(server.asked) == 1


def test_what_a_location_pointed_to_may_go_with_the_resource() -> None:
    def answer(asked: Asked) -> Answer:
        if asked.method == "DELETE":
            return Answer(202, headers={"Location": f"http://{asked.headers['host']}/operations/1"})
        return Answer(404)

    with http_server.serve(answer) as server:
        arm = Arm(SUBSCRIPTION, endpoint=server.url, who=Who(), wait=0)
        arm.delete("/resourceGroups/x", "2021-04-01")
        assert [one.method for one in server.asked] == ["DELETE", "GET"]
