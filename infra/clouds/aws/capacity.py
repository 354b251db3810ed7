"""Room for all nodes at once: a capacity reservation for the first start of a cluster, and one that is there already.

N machines that are asked for one by one in a cluster placement group seldom all start: each takes what is free beside
the others, until nothing is. `Reserved` asks for N in one request, in the placement group, before any machine is made:
there is room for all, or the `up` ends there and nothing costs. The nodes are then launched into it as they would be
without it (the reservation is open, but only what is in the group can use it). `Released` gives it back when all nodes
stand: they run on, and what ends later leaves nothing reserved that is paid for. Should an `up` be killed in between,
the reservation ends by itself.

Nodes that are added to a running cluster are asked for one by one: an open reservation would first be filled by those
that run. After all nodes have ended, a refresh forgets both resources with them, and the next `up` reserves again.
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
"""When a reservation ends by itself; EC2 takes up to an hour more."""
PENDING = 300.0
"""Seconds until a reservation is active: EC2's own bound."""
POLL = 5.0
PLATFORM = "Linux/UNIX"
NOT_NEEDED = "none"
"""In place of a reservation's id: nodes run already."""
_HOLDS = ("active", "pending")
_INPUTS = ("region", "zone", "type", "group")
"""Another one of these is another reservation."""


@dataclass(frozen=True)
class Given:
    """A reservation of the user's own."""

    id: str
    group: str
    """Name of the placement group that it was made in; empty: of none."""


def wanted(settings: Settings) -> bool:
    """Whether `up` reserves for its first start: nodes on demand that are to be near each other."""
    cloud = settings.cloud
    return cloud.capacity_reservation == "" and not cloud.spot and settings.nodes > 1


def given(settings: Settings, instance_type: str, zone: str) -> Given | None:
    """The reservation that `capacityReservation` names. Raises UsageError for one that the nodes cannot be put into."""
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
    """Why so many nodes more cannot be put into a reservation, as EC2 describes it; empty: they can."""
    if one["State"] != "active":
        return f"it is {one['State']}"
    for key, own in (("InstanceType", instance_type), ("AvailabilityZoneId", zone), ("InstancePlatform", PLATFORM)):
        if one.get(key) != own:
            return f"it is for {one.get(key)}, and the nodes are {own}"
    if one["AvailableInstanceCount"] < count:
        return f"it has room for {one['AvailableInstanceCount']} more, and {count} nodes are to be made"
    return ""


def _inside(settings: Settings, name: str) -> int:
    """How many of the stack's nodes run in a reservation."""
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
    """How many machines of the stack run in the placement group: its nodes, not its builder."""
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
    """The id of a reservation with room for all nodes, one of a killed `up` if it is there; NOT_NEEDED where nodes run.

    Raises OperationError with EC2's own code where there is no room.
    """
    if _nodes(props):
        return NOT_NEEDED
    # The id as well: another user's stack of the same name may just be taking its room.
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
    """Wait until it is active, or for as long as EC2 may take to say so. OperationError for one that has failed."""
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
    """Cancel it; what runs in it runs on. One that has ended already is no error."""
    wanted = [{"Name": "capacity-reservation-id", "Values": [name]}]
    if name == NOT_NEEDED or not any(one["State"] in _HOLDS for one in _described(where, Filters=wanted)):
        return
    try:
        api.client("ec2", where).cancel_capacity_reservation(CapacityReservationId=name)
    except api.FAILURES as error:
        said = api.one_line(error)
        raise OperationError(f"the capacity reservation {name} cannot be cancelled, and costs: {said}") from None


class ReservedProvider(PlainProvider):
    """Room for all nodes, from before the first one is made."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        name = reserve(props)
        return CreateResult(id_=name, outs={**props, "reservation": name})

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        """Forgotten when no node runs any more: the next `up` starts them all, and reserves again."""
        return ReadResult(id_=id_ if _nodes(props) else "", outs=props)

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        changed = [key for key in _INPUTS if olds[key] != news.get(key)]
        return DiffResult(changes=bool(changed), replaces=changed, delete_before_replace=True)

    def delete(self, id_: str, props: dict[str, Any]) -> None:
        release(props["region"], id_)


class ReleasedProvider(PlainProvider):
    """The reservation is given back, as all nodes stand."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        release(props["region"], props["reservation"])
        return CreateResult(id_=props["reservation"], outs=props)

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        changed = olds["reservation"] != news.get("reservation")
        return DiffResult(changes=changed, replaces=["reservation"] if changed else [], delete_before_replace=True)


class Reserved(Resource, module="aws", name="Reserved"):
    """A reservation for all nodes of a stack."""

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
            "image": image,  # so that nothing is held while one is baked
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
    """That reservation, cancelled."""

    def __init__(self, where: str, *, reservation: pulumi.Input[str], opts: pulumi.ResourceOptions) -> None:
        super().__init__(ReleasedProvider(), "released", {"region": where, "reservation": reservation}, opts)
