"""The end of the nodes with GPUs at `maxHours`, by their Auto Scaling group itself: nobody has to be there.

EKS's image runs none of our programs, so no node can end itself as on the other clusters. The group is told at its
start to have no machines from a time on; the next `up` gives it machines and a new end.
"""

from __future__ import annotations

import datetime
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, UpdateResult

from infra.clouds.aws import api
from infra.clouds.aws.names import region
from infra.clouds.dynamic_provider import PlainProvider
from infra.config.settings import Settings
from infra.errors import say

ACTION = "trainyard-max-hours"


def schedule(props: dict[str, Any]) -> str:
    """Set the time from which the group has no machines; returns it, in ISO's form. Raises OperationError."""
    end = datetime.datetime.now(datetime.UTC).replace(microsecond=0) + datetime.timedelta(hours=props["hours"])
    with api.explain(f"the end of the nodes of {props['group']} cannot be set, and they cost until fab destroy"):
        api.client("autoscaling", props["region"]).put_scheduled_update_group_action(
            AutoScalingGroupName=props["group"],
            ScheduledActionName=ACTION,
            StartTime=end,
            MinSize=0,
            DesiredCapacity=0,
        )
    say(f"the nodes with GPUs end at {end:%Y-%m-%d %H:%M} UTC (maxHours {props['hours']:g}); fab up brings them back")
    return end.isoformat()


class EndsProvider(PlainProvider):
    """The scheduled end of a group's machines."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Set the end, `hours` from now. OperationError if AWS refuses: the machines cost until `fab destroy`."""
        return CreateResult(id_=f"{props['group']}/{ACTION}", outs={**props, "ends": schedule(props)})

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        """Dropped from the state once it has happened, so that the next `up` sets a new end."""
        with api.explain("the end of the nodes cannot be looked up"):
            listed = api.pages(
                api.client("autoscaling", props["region"]),
                *("describe_scheduled_actions", "ScheduledUpdateGroupActions"),
                AutoScalingGroupName=props["group"],
                ScheduledActionNames=[ACTION],
            )
        return ReadResult(id_=id_ if listed else "", outs=props)

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        """Another group replaces the resource; other hours or another region set the end anew."""
        other = olds["group"] != news.get("group")
        changed = [key for key in ("hours", "region") if olds[key] != news.get(key)]
        return DiffResult(changes=other or bool(changed), replaces=["group"] if other else [])

    def update(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        """Set the end anew, in place of the one before: the hours count from now. OperationError as in `create`."""
        return UpdateResult(outs={**news, "ends": schedule(news)})


class Ends(Resource, module="aws", name="Ends"):
    """The end of the nodes with GPUs."""

    ends: pulumi.Output[str]

    def __init__(self, settings: Settings, group: pulumi.Input[str], opts: pulumi.ResourceOptions) -> None:
        """`group`: name of their Auto Scaling group."""
        inputs = {"region": region(settings), "group": group, "hours": settings.max_hours, "ends": None}
        super().__init__(EndsProvider(), "ends", inputs, opts)
