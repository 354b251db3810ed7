"""Room for all nodes at once: a capacity reservation for a cluster's first start, or one that the user already has.

Of N machines requested one by one in a cluster placement group, the last often find no room. `Reserved` asks for all N
in one request, in the placement group, before any machine is made: either there is room for all, or `up` ends there and
nothing is billed. The nodes are then launched normally (the reservation is open, but only machines in the group can use
it). `Released` cancels it when all nodes run: they keep running, and when they end nothing reserved is left to pay for.
If `up` is killed in between, the reservation ends by itself.

Nodes added to a running cluster are requested one by one, as running nodes would use up an open reservation first.
After all nodes have ended, a refresh drops both resources from the state, and the next `up` reserves again.
"""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource

from infra.clouds.aws import api
from infra.clouds.aws.names import region
from infra.clouds.dynamic_provider import PlainProvider
from infra.clouds.naming import ID_TAG, STACK_TAG, identity, tags
from infra.config.settings import Settings
from infra.errors import OperationError, UsageError
from infra.state import operation

ENDS_AFTER = datetime.timedelta(hours=1)
"""The reservation's own end; EC2 takes up to an hour more."""
PENDING = 300.0
"""Seconds until a reservation must be active: EC2's own limit."""
POLL = 5.0
PLATFORM = "Linux/UNIX"
NOT_NEEDED = "none"
"""Stands for a reservation's id when nodes run already."""
_HOLDS = ("active", "pending")
_INPUTS = ("region", "zone", "type", "group")
"""A change of one of these needs another reservation."""


@dataclass(frozen=True)
class Given:
    """A reservation that the user made."""

    id: str
    group: str
    """Name of its placement group; empty if it has none."""


def wanted(settings: Settings) -> bool:
    """Whether `up` reserves for the first start: for more than one node, on demand, without a reservation given."""
    cloud = settings.cloud
    return cloud.capacity_reservation == "" and not cloud.spot and settings.nodes > 1


def given(settings: Settings, instance_type: str, zone: str) -> Given | None:
    """The reservation in `capacityReservation`. Raises UsageError if the nodes do not fit into it."""
    name = settings.cloud.capacity_reservation
    if not name.startswith("cr-"):
        return None
    wanted = [{"Name": "capacity-reservation-id", "Values": [name]}]
    for one in _described(region(settings), Filters=wanted):
        why = unfit(one, instance_type, zone, settings.nodes - _inside(settings, name))
        if why:
            raise UsageError(f"capacityReservation = {name!r}: {why}")
        return Given(name, str(one.get("PlacementGroupArn", "")).partition(":placement-group/")[2])
    raise UsageError(f"capacityReservation = {name!r}: none of this account in {region(settings)}")


def unfit(one: dict[str, Any], instance_type: str, zone: str, count: int) -> str:
    """Why `count` more nodes do not fit into a reservation as EC2 describes it; empty if they do."""
    if one["State"] != "active":
        return f"it is {one['State']}"
    for key, own in (("InstanceType", instance_type), ("AvailabilityZoneId", zone), ("InstancePlatform", PLATFORM)):
        if one.get(key) != own:
            return f"it is for {one.get(key)}, and the nodes are {own}"
    if one["AvailableInstanceCount"] < count:
        return f"it has room for {one['AvailableInstanceCount']} more, and {count} nodes are to be made"
    return ""


def _inside(settings: Settings, name: str) -> int:
    """How many of the stack's nodes run in the reservation."""
    found = _running(region(settings), settings.stack)
    own = identity(settings).items()
    return sum(one.get("CapacityReservationId") == name and own <= api.tags(one).items() for one in found)


def _running(where: str, stack: str) -> list[dict[str, Any]]:
    filters = [
        {"Name": f"tag:{STACK_TAG}", "Values": [stack]},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    try:
        found = api.pages(api.client("ec2", where), "describe_instances", "Reservations", Filters=filters)
    except api.FAILURES as error:
        raise OperationError(f"the nodes that run cannot be listed: {api.one_line(error)}") from None
    return [one for reservation in found for one in reservation["Instances"]]


def _nodes(props: dict[str, Any]) -> int:
    """How many nodes of the stack run in the placement group; the builder is not in it."""
    name = str(props["group"]).partition(":placement-group/")[2]
    found = _running(props["region"], props["stack"])
    return sum(
        one.get("Placement", {}).get("GroupName") == name and one["InstanceType"] == props["type"] for one in found
    )


def _described(where: str, **asked: Any) -> list[dict[str, Any]]:
    try:
        client = api.client("ec2", where)
        return api.pages(client, "describe_capacity_reservations", "CapacityReservations", **asked)
    except api.FAILURES as error:
        raise OperationError(f"capacity reservations cannot be listed: {api.one_line(error)}") from None


def reserve(props: dict[str, Any]) -> str:
    """The id of a reservation for all nodes, also one that a killed `up` left; NOT_NEEDED when nodes run already.

    Raises OperationError with EC2's error code if there is no room.
    """
    if _nodes(props):
        return NOT_NEEDED
    # Filter by id as well: another user's stack of the same name may be reserving now.
    own = {STACK_TAG: props["stack"], **{key: props["tags"][key] for key in (ID_TAG,) if key in props["tags"]}}
    wanted = [{"Name": f"tag:{key}", "Values": [value]} for key, value in own.items()]
    for old in _described(props["region"], Filters=wanted):
        if old["State"] in _HOLDS:
            same = [old.get("PlacementGroupArn"), old["InstanceType"]] == [props["group"], props["type"]]
            if same and old["AvailableInstanceCount"] >= props["count"]:
                return _active(props["region"], str(old["CapacityReservationId"]))
            release(props["region"], str(old["CapacityReservationId"]))
    end = datetime.datetime.now(datetime.UTC) + ENDS_AFTER
    try:
        made = api.client("ec2", props["region"]).create_capacity_reservation(
            InstanceType=props["type"],
            InstancePlatform=PLATFORM,
            AvailabilityZoneId=props["zone"],
            InstanceCount=int(props["count"]),
            InstanceMatchCriteria="open",
            PlacementGroupArn=props["group"],
            EndDateType="limited",
            EndDate=end,
            TagSpecifications=[
                {
                    "ResourceType": "capacity-reservation",
                    "Tags": [{"Key": key, "Value": value} for key, value in props["tags"].items()],
                }
            ],
        )
    except api.FAILURES as error:
        what = f"{int(props['count'])} x {props['type']} beside each other in {props['zone']}"
        said = f"{api.one_line(error)}; `capacityReservation: none` asks for one node at a time"
        raise OperationError(f"{what} cannot be reserved, and none was started: {said}") from None
    return _active(props["region"], str(made["CapacityReservation"]["CapacityReservationId"]))


def _active(where: str, name: str) -> str:
    """Wait until it is active, at most PENDING seconds. Raises OperationError if it failed."""
    check, until = operation.Watch().check, time.monotonic() + PENDING
    while time.monotonic() < until:
        check()
        wanted = [{"Name": "capacity-reservation-id", "Values": [name]}]
        state = next((one["State"] for one in _described(where, Filters=wanted)), "pending")
        if state == "active":
            break
        if state not in _HOLDS:
            raise OperationError(f"the capacity reservation {name} is {state}: InsufficientCapacity, or a limit")
        time.sleep(POLL)
    return name


def release(where: str, name: str) -> None:
    """Cancel a reservation; machines in it keep running. One that has ended already is no error."""
    wanted = [{"Name": "capacity-reservation-id", "Values": [name]}]
    if name == NOT_NEEDED or not any(one["State"] in _HOLDS for one in _described(where, Filters=wanted)):
        return
    try:
        api.client("ec2", where).cancel_capacity_reservation(CapacityReservationId=name)
    except api.FAILURES as error:
        said = api.one_line(error)
        raise OperationError(f"the capacity reservation {name} cannot be cancelled, and costs: {said}") from None


class ReservedProvider(PlainProvider):
    """A reservation, made before the first node."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        name = reserve(props)
        return CreateResult(id_=name, outs={**props, "reservation": name})

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        """Dropped from the state when no node runs: the next `up` starts all of them, and reserves again."""
        return ReadResult(id_=id_ if _nodes(props) else "", outs=props)

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        changed = [key for key in _INPUTS if olds[key] != news.get(key)]
        return DiffResult(changes=bool(changed), replaces=changed, delete_before_replace=True)

    def delete(self, id_: str, props: dict[str, Any]) -> None:
        release(props["region"], id_)


class ReleasedProvider(PlainProvider):
    """Cancels the reservation once all nodes run."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        release(props["region"], props["reservation"])
        return CreateResult(id_=props["reservation"], outs=props)

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        changed = olds["reservation"] != news.get("reservation")
        return DiffResult(changes=changed, replaces=["reservation"] if changed else [], delete_before_replace=True)


class Reserved(Resource, module="aws", name="Reserved"):
    """A capacity reservation for all nodes of a stack."""

    reservation: pulumi.Output[str]

    def __init__(
        self,
        settings: Settings,
        instance_type: str,
        zone: str,
        *,
        group: pulumi.Input[str],
        image: pulumi.Input[str],
        opts: pulumi.ResourceOptions,
    ) -> None:
        inputs = {
            "image": image,  # waits for the image, so that nothing is reserved during a bake
            "region": region(settings),
            "zone": zone,
            "type": instance_type,
            "group": group,
            "count": settings.nodes,
            "stack": settings.stack,
            "tags": tags(settings),
            "reservation": None,
        }
        super().__init__(ReservedProvider(), "reserved", inputs, opts)


class Released(Resource, module="aws", name="Released"):
    """The cancellation of that reservation."""

    def __init__(self, where: str, *, reservation: pulumi.Input[str], opts: pulumi.ResourceOptions) -> None:
        super().__init__(ReleasedProvider(), "released", {"region": where, "reservation": reservation}, opts)
