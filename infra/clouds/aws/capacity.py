"""Room for all nodes at once: a capacity reservation for a cluster's first start, or one that the user already has.

Of N machines requested one by one in a cluster placement group, the last often find no room. `Reserved` asks for all N
in one request before any machine is made: either there is room for all, or `up` ends there and nothing is billed. The
nodes are then launched normally: the reservation is open, but only machines in the group can use it. `Released` cancels
it when all nodes run, and they keep running. If `up` is killed in between, it ends by itself. Nodes added later are
requested one by one, as running nodes would use up an open reservation first. After all nodes have ended, a refresh
drops both resources from the state, and the next `up` reserves again.
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
from infra.clouds.aws.pcluster_config import CLUSTER
from infra.clouds.dynamic_provider import OnceProvider, PlainProvider
from infra.clouds.naming import ID_TAG, STACK_TAG, identity, tags
from infra.config.settings import Settings
from infra.config.values import SettingsError
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
    """A reservation or a Capacity Block that the user made."""

    id: str
    group: str
    """Name of its placement group; empty if it has none."""
    block: bool = False
    """Whether it is a Capacity Block for ML, which machines have to ask for as a market of its own."""


def check(settings: Settings) -> None:
    """Raise SettingsError for Spot nodes in a reservation. Makes no request."""
    reservation = settings.cloud.capacity_reservation
    if settings.cloud.spot and reservation.startswith("cr-"):
        raise SettingsError("capacityReservation", reservation, "empty with spot: Spot nodes cannot be put into one")


def wanted(settings: Settings) -> bool:
    """Whether `up` reserves for the first start: for more than one node, on demand, without a reservation given."""
    cloud = settings.cloud
    return cloud.capacity_reservation == "" and not cloud.spot and settings.nodes > 1


def given(settings: Settings, instance_type: str, zone: str) -> Given | None:
    """The reservation in `capacityReservation`. Raises UsageError if the nodes do not fit into it."""
    name = settings.cloud.capacity_reservation
    if not name.startswith("cr-"):
        return None
    for one in _by_id(region(settings), name):
        own = identity(settings).items()
        inside = [
            node
            for node in _running(region(settings), settings.stack)
            if node.get("CapacityReservationId") == name and own <= api.tags(node).items()
        ]
        if why := unfit(one, instance_type, zone, settings.nodes - len(inside)):
            raise UsageError(f"capacityReservation = {name!r}: {why}")
        block = one.get("ReservationType") == "capacity-block"
        if block and settings.cluster == CLUSTER:
            # ParallelCluster takes one only for nodes that always run (MinCount = MaxCount).
            why = "it is a Capacity Block, and a queue's machines come and go; cluster aws-gpu takes one"
            raise UsageError(f"capacityReservation = {name!r}: {why}")
        return Given(name, _group_name(one.get("PlacementGroupArn", "")), block)
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


def _group_name(arn: str) -> str:
    return arn.partition(":placement-group/")[2]


def _running(where: str, stack: str) -> list[dict[str, Any]]:
    with api.explain("the nodes that run cannot be listed"):
        return api.instances(api.client("ec2", where), [*api.where(f"tag:{STACK_TAG}", stack), *api.RUNNING])


def _nodes(props: dict[str, Any]) -> int:
    """How many nodes of the stack run in the placement group; the builder is not in it."""
    here = (_group_name(props["group"]), props["type"])
    running = _running(props["region"], props["stack"])
    return sum((one.get("Placement", {}).get("GroupName"), one["InstanceType"]) == here for one in running)


def _listed(where: str, filters: list[dict[str, Any]]) -> list[dict[str, Any]]:
    with api.explain("capacity reservations cannot be listed"):
        ec2 = api.client("ec2", where)
        return api.pages(ec2, "describe_capacity_reservations", "CapacityReservations", Filters=filters)


def _by_id(where: str, name: str) -> list[dict[str, Any]]:
    return _listed(where, api.where("capacity-reservation-id", name))


def reserve(props: dict[str, Any]) -> str:
    """The id of a reservation for all nodes, a killed `up`'s too; NOT_NEEDED if nodes run. OperationError: no room."""
    if _nodes(props):
        return NOT_NEEDED
    where, count = props["region"], int(props["count"])
    # Filter by id as well: another user's stack of the same name may be reserving now.
    own = {STACK_TAG: props["stack"]} | {key: props["tags"][key] for key in (ID_TAG,) if key in props["tags"]}
    for old in _listed(where, [entry for key, value in own.items() for entry in api.where(f"tag:{key}", value)]):
        if old["State"] in _HOLDS:
            same = [old.get("PlacementGroupArn"), old["InstanceType"]] == [props["group"], props["type"]]
            if same and old["AvailableInstanceCount"] >= count:
                return _active(where, old["CapacityReservationId"])
            release(where, old["CapacityReservationId"])
    tags = [{"Key": key, "Value": value} for key, value in props["tags"].items()]
    try:
        made = api.client("ec2", where).create_capacity_reservation(
            InstanceType=props["type"],
            InstancePlatform=PLATFORM,
            AvailabilityZoneId=props["zone"],
            InstanceCount=count,
            InstanceMatchCriteria="open",
            PlacementGroupArn=props["group"],
            EndDateType="limited",
            EndDate=datetime.datetime.now(datetime.UTC) + ENDS_AFTER,
            TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": tags}],
        )
    except api.FAILURES as error:
        raise OperationError(
            f"{count} x {props['type']} beside each other in {props['zone']} cannot be reserved, and none was started: "
            f"{api.one_line(error)}; `capacityReservation: none` asks for one node at a time"
        ) from None
    return _active(where, made["CapacityReservation"]["CapacityReservationId"])


def _active(where: str, name: str) -> str:
    """Wait until it is active, at most PENDING seconds. Raises OperationError if it failed."""
    check, until = operation.CancellationWatch().check, time.monotonic() + PENDING
    while time.monotonic() < until:
        check()
        state = next((one["State"] for one in _by_id(where, name)), "pending")
        if state == "active":
            break
        if state not in _HOLDS:
            raise OperationError(f"the capacity reservation {name} is {state}: InsufficientCapacity, or a limit")
        time.sleep(POLL)
    return name


def release(where: str, name: str) -> None:
    """Cancel a reservation; machines in it keep running. One that has ended already is no error."""
    if name != NOT_NEEDED and any(one["State"] in _HOLDS for one in _by_id(where, name)):
        with api.explain(f"the capacity reservation {name} cannot be cancelled, and costs"):
            api.client("ec2", where).cancel_capacity_reservation(CapacityReservationId=name)


class ReservedProvider(PlainProvider):
    """A reservation, made before the first node."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        """The id is the reservation's, or NOT_NEEDED. OperationError if there is no room for all nodes at once."""
        name = reserve(props)
        return CreateResult(id_=name, outs={**props, "reservation": name})

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        """Dropped from the state when no node runs: the next `up` starts all of them, and reserves again."""
        return ReadResult(id_=id_ if _nodes(props) else "", outs=props)

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        """A change of _INPUTS replaces it, the old one first. Another number of nodes needs no other reservation."""
        changed = [key for key in _INPUTS if olds[key] != news.get(key)]
        return DiffResult(changes=bool(changed), replaces=changed, delete_before_replace=True)

    def delete(self, id_: str, props: dict[str, Any]) -> None:
        """Cancel it, if it has not ended. OperationError if EC2 refuses: then it costs until its own end."""
        release(props["region"], id_)


class ReleasedProvider(OnceProvider):
    """Cancels the reservation once all nodes run."""

    machine = "reservation"
    delete_before_replace = True

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Cancel it, if it has not ended. OperationError if EC2 refuses: then it costs until its own end."""
        release(props["region"], props["reservation"])
        return CreateResult(id_=props["reservation"], outs=props)


class Reserved(Resource, module="aws", name="Reserved"):
    """A capacity reservation for all nodes of a stack."""

    reservation: pulumi.Output[str]

    def __init__(
        self, settings: Settings, machines: dict[str, pulumi.Input[str]], opts: pulumi.ResourceOptions
    ) -> None:
        """`machines`: their type, zone, placement group, and image, so that nothing is reserved during a bake."""
        own = {"region": region(settings), "count": settings.nodes, "stack": settings.stack, "tags": tags(settings)}
        inputs = {**machines, **own, "reservation": None}
        super().__init__(ReservedProvider(), "reserved", inputs, opts)


class Released(Resource, module="aws", name="Released"):
    """The cancellation of that reservation."""

    def __init__(self, where: str, *, reservation: pulumi.Input[str], opts: pulumi.ResourceOptions) -> None:
        super().__init__(ReleasedProvider(), "released", {"region": where, "reservation": reservation}, opts)
