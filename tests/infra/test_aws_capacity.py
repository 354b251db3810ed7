"""Room for all nodes at once: what is asked of EC2 about capacity reservations, and when.

moto has no such calls: the stand-in below keeps reservations and machines in memory, and every request to it passes the
judge of forms.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aws_judge
import pytest
from botocore.exceptions import ClientError

from fabfile.stacks import capacity
from infra.clouds.aws import account, api
from infra.clouds.aws import capacity as room
from infra.clouds.aws.kinds import KINDS
from infra.clouds.aws.place import AccountRegion
from infra.config import stack_file
from infra.config.settings import Settings, load
from infra.errors import OperationError, UsageError
from infra.state.ownership import Claim

GROUP = "arn:aws:ec2:us-east-1:123456789012:placement-group/trainyard-yard"
PROPS: dict[str, Any] = {
    **{"region": "us-east-1", "zone": "use1-az6", "type": "m7i.8xlarge", "group": GROUP, "count": 3.0, "stack": "yard"},
    "tags": {"trainyard-stack": "yard", "trainyard-owner": "ada"},
}
OWN = "cr-0aaaaaaaaaaaaaaaa"
OTHER = "cr-0bbbbbbbbbbbbbbbb"


@dataclass
class Ec2:
    """EC2 as far as this is about it."""

    free: int = 64
    """Machines that there is room for."""
    nodes: int = 0
    held: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def can_paginate(self, _operation: str) -> bool:
        return False

    def asked(self, operation: str, request: dict[str, Any]) -> None:
        self.calls.append(operation)
        assert aws_judge.refused("ec2", operation, request) == []

    def describe_instances(self, **request: Any) -> dict[str, Any]:
        self.asked("DescribeInstances", request)
        one = {
            "InstanceType": "m7i.8xlarge",
            "Placement": {"GroupName": "trainyard-yard"},
            "CapacityReservationId": OTHER,
        }
        builder = {"InstanceType": "m7i.8xlarge", "Placement": {"GroupName": ""}}
        return {"Reservations": [{"Instances": [one] * self.nodes}, {"Instances": [builder]}]}

    def describe_capacity_reservations(self, **request: Any) -> dict[str, Any]:
        self.asked("DescribeCapacityReservations", request)
        wanted = {each["Name"]: each["Values"] for each in request["Filters"]}
        found = []
        for name, one in self.held.items():
            facts = {"capacity-reservation-id": name, **{f"tag:{key}": value for key, value in api.tags(one).items()}}
            if all(facts.get(key) in values for key, values in wanted.items()):
                found.append(one)
        return {"CapacityReservations": found}

    def create_capacity_reservation(self, **request: Any) -> dict[str, Any]:
        self.asked("CreateCapacityReservation", request)
        if request["InstanceCount"] > self.free:
            error = {"Code": "InsufficientInstanceCapacity", "Message": "There is not enough capacity"}
            raise ClientError({"Error": error}, "CreateCapacityReservation")
        made = {**request, "State": "pending", "AvailableInstanceCount": request["InstanceCount"]}
        self.held[OWN] = {**made, "CapacityReservationId": OWN, "TotalInstanceCount": request["InstanceCount"]}
        self.held[OWN]["Tags"] = request["TagSpecifications"][0]["Tags"]
        answer = dict(self.held[OWN])
        self.held[OWN]["State"] = "active"
        return {"CapacityReservation": answer}

    def cancel_capacity_reservation(self, **request: Any) -> dict[str, Any]:
        self.asked("CancelCapacityReservation", request)
        self.held[request["CapacityReservationId"]]["State"] = "cancelled"
        return {"Return": True}


def reservation(**changed: Any) -> dict[str, Any]:
    return {
        "CapacityReservationId": OTHER,
        "State": "active",
        "InstanceType": "m7i.8xlarge",
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZoneId": "use1-az6",
        "AvailableInstanceCount": 3,
        "TotalInstanceCount": 8,
        "Tags": [{"Key": "trainyard-stack", "Value": "yard"}],
        **changed,
    }


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Ec2:
    made = Ec2()
    monkeypatch.setattr(api, "client", lambda _service, _where, _profile="": made)
    monkeypatch.setattr(room, "POLL", 0.0)
    return made


@pytest.fixture
def settings(key_file: Path) -> Settings:
    mine = {"adminCidr": "203.0.113.7/32", "owner": "ada", "alertEmail": "ada@example.org"}
    made = load("aws-xeon", {**stack_file.read("aws-xeon"), **mine, "publicKey": str(key_file)})
    return replace(made, stack="yard", cloud=replace(made.cloud, capacity_reservation=OTHER))


# --- for the first start ---


def test_room_for_all_is_one_request_and_ends_by_itself(ec2: Ec2) -> None:
    made = room.ReservedProvider().create(dict(PROPS))
    assert (
        made.outs is not None
        and (made.id, made.outs["reservation"]) == (OWN, OWN)
        and ec2.calls.count("CreateCapacityReservation") == 1
    )
    held = ec2.held[OWN]
    assert (held["InstanceCount"], held["PlacementGroupArn"], held["EndDateType"]) == (3, GROUP, "limited")
    remaining = held["EndDate"] - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(minutes=55) < remaining <= datetime.timedelta(hours=1)
    assert {"Key": "trainyard-stack", "Value": "yard"} in held["Tags"]


def test_no_room_for_all_starts_none_and_is_told_as_a_want_of_room(ec2: Ec2) -> None:
    ec2.free = 2
    with pytest.raises(OperationError) as caught:
        room.ReservedProvider().create(dict(PROPS))
    message = str(caught.value)
    assert "3 x m7i.8xlarge" in message and "none was started" in message and len(message.splitlines()) == 1
    event = json.dumps({"diagnosticEvent": {"severity": "error", "urn": "urn::reserved", "message": message}})
    (shortage,) = capacity.shortages(event)
    assert (shortage.resource, shortage.code) == ("reserved", "InsufficientInstanceCapacity")


def test_nodes_that_run_already_need_none(ec2: Ec2) -> None:
    ec2.nodes = 3
    assert room.ReservedProvider().create(dict(PROPS)).id == room.NOT_NEEDED
    room.ReleasedProvider().create({"region": "us-east-1", "reservation": room.NOT_NEEDED})
    assert set(ec2.calls) == {"DescribeInstances"}


def test_what_a_killed_up_has_reserved_is_taken_and_what_does_not_fit_is_given_back(ec2: Ec2) -> None:
    ec2.held[OTHER] = reservation(PlacementGroupArn=GROUP)
    assert room.ReservedProvider().create(dict(PROPS)).id == OTHER
    assert "CreateCapacityReservation" not in ec2.calls
    assert room.ReservedProvider().create({**PROPS, "count": 4.0}).id == OWN
    assert ec2.held[OTHER]["State"] == "cancelled"


def test_a_reservation_of_somebody_elses_stack_of_the_same_name_is_neither_used_nor_ended(ec2: Ec2) -> None:
    theirs = {"trainyard-stack": "yard", "trainyard-owner": "bob", "trainyard-id": "0123"}
    ec2.held = {OTHER: reservation(Tags=[{"Key": key, "Value": value} for key, value in theirs.items()])}
    mine = {**PROPS, "tags": {**PROPS["tags"], "trainyard-id": "4567"}}
    assert room.ReservedProvider().create(mine).id == OWN
    assert ec2.held.pop(OWN)["State"] == ec2.held[OTHER]["State"] == "active"
    place = AccountRegion(Claim("yard", "ada", frozenset({"4567"})), "us-east-1", "123456789012", "aws")
    kind = KINDS["capacity reservation"]
    (found,) = (kind.live(place, each) for each in kind.listed(place))
    assert not found.ours, "a sweep ends only the user's own"


def test_it_is_given_back_when_all_nodes_stand_and_again_is_no_error(ec2: Ec2) -> None:
    room.ReservedProvider().create(dict(PROPS))
    released = room.ReleasedProvider()
    assert released.create({"region": "us-east-1", "reservation": OWN}).id == OWN
    assert ec2.held[OWN]["State"] == "cancelled"
    room.ReservedProvider().delete(OWN, dict(PROPS))
    released.create({"region": "us-east-1", "reservation": "cr-0cccccccccccccccc"})
    assert ec2.calls.count("CancelCapacityReservation") == 1


def test_it_is_forgotten_when_no_node_runs_any_more(ec2: Ec2) -> None:
    provider = room.ReservedProvider()
    assert provider.read(OWN, dict(PROPS)).id == ""
    ec2.nodes = 1
    assert provider.read(OWN, dict(PROPS)).id == OWN


@pytest.mark.parametrize(
    "changed, anew",
    [({"count": 5.0}, False), ({"tags": {}}, False), ({"type": "m8i.8xlarge"}, True), ({"zone": "z"}, True)],
)
def test_more_nodes_reserve_nothing_and_another_machine_does(ec2: Ec2, changed: dict[str, Any], anew: bool) -> None:
    assert room.ReservedProvider().diff(OWN, dict(PROPS), {**PROPS, **changed}).changes is anew


def test_another_reservation_is_released_too() -> None:
    old = {"region": "us-east-1", "reservation": OWN}
    assert room.ReleasedProvider().diff(OWN, old, {**old, "reservation": OTHER}).replaces == ["reservation"]
    assert not room.ReleasedProvider().diff(OWN, old, dict(old)).changes


def test_one_that_fails_is_told(ec2: Ec2, monkeypatch: pytest.MonkeyPatch) -> None:
    ec2.held[OTHER] = reservation(State="failed")
    with pytest.raises(OperationError, match=f"{OTHER} is failed"):
        room._active("us-east-1", OTHER)


# --- the user's own ---


def test_the_users_own_is_looked_at(ec2: Ec2, settings: Settings) -> None:
    ec2.held[OTHER] = reservation(PlacementGroupArn="arn:aws:ec2:us-east-1:123456789012:placement-group/ml")
    assert room.given(settings, "m7i.8xlarge", "use1-az6") == room.Given(OTHER, "ml")
    ec2.held[OTHER] = reservation(PlacementGroupArn=None) | {"PlacementGroupArn": ""}
    assert room.given(settings, "m7i.8xlarge", "use1-az6") == room.Given(OTHER, "")
    found = account._reservation(settings)
    assert found.state == "ok"


def test_nodes_that_run_in_it_have_their_place(ec2: Ec2, settings: Settings) -> None:
    ec2.nodes, ec2.held[OTHER] = 3, reservation(AvailableInstanceCount=0)
    assert room.given(settings, "m7i.8xlarge", "use1-az6") is not None


@pytest.mark.parametrize(
    "changed, why",
    [
        ({"State": "expired"}, "it is expired"),
        ({"InstanceType": "m7i.4xlarge"}, "it is for m7i.4xlarge, and the nodes are m7i.8xlarge"),
        ({"AvailabilityZoneId": "use1-az1"}, "it is for use1-az1, and the nodes are use1-az6"),
        ({"InstancePlatform": "Windows"}, "it is for Windows"),
        ({"AvailableInstanceCount": 2}, "it has room for 2 more, and 3 nodes are to be made"),
    ],
)
def test_one_that_the_nodes_do_not_fit_into_is_refused(
    ec2: Ec2, settings: Settings, changed: dict[str, Any], why: str
) -> None:
    ec2.held[OTHER] = reservation(**changed)
    with pytest.raises(UsageError, match=f"capacityReservation = '{OTHER}': {why}"):
        room.given(settings, "m7i.8xlarge", "use1-az6")
    found = account._reservation(settings)
    assert found.state == "failed" and why in found.detail and "capacityReservation" in found.mend


def test_a_capacity_block_is_for_nodes_that_always_run(ec2: Ec2, settings: Settings) -> None:
    ec2.held[OTHER] = reservation(ReservationType="capacity-block", PlacementGroupArn="")
    assert room.given(settings, "m7i.8xlarge", "use1-az6") == room.Given(OTHER, "", block=True)
    slurm = replace(settings, cluster="aws-slurm")
    with pytest.raises(UsageError, match=f"capacityReservation = '{OTHER}': it is a Capacity Block, and a queue's"):
        room.given(slurm, "m7i.8xlarge", "use1-az6")


def test_one_that_is_not_there_is_refused(ec2: Ec2, settings: Settings) -> None:
    with pytest.raises(UsageError, match="none of this account in us-east-1"):
        room.given(settings, "m7i.8xlarge", "use1-az6")


# --- what is left of it ---


def test_the_audit_prices_what_is_reserved_and_not_used(ec2: Ec2) -> None:
    ec2.held = {OTHER: reservation(), OWN: reservation(CapacityReservationId=OWN, State="cancelled")}
    place = AccountRegion(Claim("yard", "ada"), "us-east-1", "123456789012", "aws")
    kind = KINDS["capacity reservation"]
    (found,) = (kind.live(place, each) for each in kind.listed(place))
    assert found.ours and found.owner == OTHER and "3 of 8 unused" in found.what
    assert found.usd_per_hour == pytest.approx(3 * 1.6128)
    kind.remove(place, found.owner)
    assert ec2.held[OTHER]["State"] == "cancelled"
