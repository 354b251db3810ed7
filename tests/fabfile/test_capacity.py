"""A cloud without room, told as such: on event logs that pulumi wrote, and on a live `pulumi up` that fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import toy_project
from invoke.exceptions import Exit

from fabfile.stacks import capacity, pulumi_cli

# As pulumi-aws and pulumi-azure-native hand the clouds' errors on.
NO_ROOM = (
    "creating EC2 Instance: operation error EC2: RunInstances, https response error StatusCode: 500, RequestID: 8e1d, "
    "api error InsufficientInstanceCapacity: We currently do not have sufficient m7i.8xlarge capacity in the "
    "Availability Zone you requested (us-east-1a)."
)
LIMIT = (
    "creating EC2 Instance: api error VcpuLimitExceeded: You have requested more vCPU capacity than your limit of 32"
)
AZURE = (
    'Code="OperationNotAllowed" Message="Operation could not be completed as it results in exceeding approved '
    'standardDSv6Family Cores quota. Additional details - Deployment Model: Resource Manager, Location: eastus"'
)
FACTS = {"cloud": "aws", "offered_by": "zone", "type": "m7i.8xlarge", "place": "use1-az6"}


def event(message: str, name: str = "node2", severity: str = "error") -> str:
    """One line of the log, as display.go's logJSONEvent writes it."""
    urn = f"urn:pulumi:toy::toy::aws:ec2/instance:Instance::{name}"
    record = {"urn": urn, "prefix": "error: ", "message": message, "color": "never", "severity": severity}
    return json.dumps({"sequence": 1, "timestamp": 1795259175, "diagnosticEvent": record})


@pytest.fixture
def offers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulumi_cli, "ask", lambda _argv: '["use1-az1", "use1-az4"]')


@pytest.mark.acceptance
@pytest.mark.skipif(not shutil.which("pulumi"), reason="needs the pulumi command")
def test_what_pulumi_wrote_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The real command and its real log, its display live on the way; only the cloud's errors are given."""
    for name, value in toy_project.make(tmp_path, json.dumps({"fine": "", "node2": NO_ROOM, "node3": LIMIT})).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(pulumi_cli, "ROOT", tmp_path)
    monkeypatch.setattr(pulumi_cli, "ask", lambda _argv: '["use1-az1", "use1-az4"]')
    update = capacity.up(["pulumi", "up", "--yes", "--skip-preview", "--stack", "toy"], "toy", FACTS)
    shown = capfd.readouterr().out
    live, _, advice = shown.partition("no capacity: ")
    assert update.code != 0 and update.began and "dynamic:Resource fine created" in live
    assert "node2: InsufficientInstanceCapacity: the cloud has no free machine of this type there now" in advice
    assert "node3: VcpuLimitExceeded: the account's own limit is too low" in advice
    assert "m7i.8xlarge is offered in these zones: use1-az1, use1-az4 (you asked in use1-az6)" in advice
    assert "fab check --account --stack toy" in advice and "fab destroy --stack toy" in advice


@pytest.mark.acceptance
@pytest.mark.skipif(not shutil.which("pulumi"), reason="needs the pulumi command")
def test_a_preview_alone_is_no_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The first half of `pulumi up`, which asks at its end.
    for name, value in toy_project.make(tmp_path, json.dumps({"fine": ""})).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(pulumi_cli, "ROOT", tmp_path)
    log = tmp_path / "events.json"
    argv = ["pulumi", "preview", "--stack", "toy", "--event-log", str(log)]
    assert pulumi_cli.follow(argv, PULUMI_DEBUG_COMMANDS="true") == 0
    assert "resourcePreEvent" in log.read_text() and not capacity.began(log.read_text())


@pytest.mark.acceptance
@pytest.mark.skipif(not shutil.which("pulumi"), reason="needs the pulumi command")
def test_an_up_that_is_well_says_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in toy_project.make(tmp_path, json.dumps({"fine": ""})).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(pulumi_cli, "ROOT", tmp_path)
    assert capacity.up(["pulumi", "up", "--yes", "--skip-preview", "--stack", "toy"], "toy", FACTS) == capacity.Update(
        0, began=True
    )
    assert "capacity" not in capfd.readouterr().out


@pytest.mark.parametrize("code", [code for code in capacity.CODES if code != "Unsupported"])
def test_every_code_is_found_in_a_sentence(code: str) -> None:
    (found,) = capacity.shortages(event(f"creating: api error {code}: none there"))
    assert (found.resource, found.code, found.message) == ("node2", code, f"{code}: none there")
    (found,) = capacity.shortages(event(f'Status=409 Code="{code}" Message="none there"'))
    assert found.code == code


def test_azures_quota_has_no_code_of_its_own() -> None:
    (found,) = capacity.shortages(event(AZURE))
    assert found.code == "QuotaExceeded" and found.message.startswith("OperationNotAllowed")


@pytest.mark.parametrize(
    "line",
    [
        event("api error UnauthorizedOperation: You are not authorized to perform this operation."),
        event('Code="OperationNotAllowed" Message="The VM is being deleted"'),
        event("Unsupported block type"),
        event(NO_ROOM, severity="info"),
        '{"resourcePreEvent": {"metadata": {"urn": "InsufficientInstanceCapacity"}}}',
        event(NO_ROOM)[:-20],
        "[]",
        "",
    ],
)
def test_what_is_no_want_of_room_is_not_called_one(line: str) -> None:
    assert capacity.shortages(line) == []


def test_a_resource_is_told_of_once() -> None:
    assert len(capacity.shortages("\n".join([event(NO_ROOM), event(NO_ROOM), event(LIMIT, "node3")]))) == 2


def test_spot_says_that_there_is_on_demand(offers: None) -> None:
    found = capacity.shortages(event("api error SpotMaxPriceTooLow: below the minimum"))
    assert "  or on demand: pulumi config set spot false --stack yard" in capacity.advice(found, "yard", FACTS)


def test_a_cloud_that_cannot_be_asked_for_zones_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_argv: object) -> str:
        raise Exit("AWS does not answer", code=1)

    monkeypatch.setattr(pulumi_cli, "ask", fails)
    lines = capacity.advice(capacity.shortages(event(NO_ROOM)), "yard", FACTS)
    assert "  which zones offer m7i.8xlarge is not known: AWS does not answer" in lines
