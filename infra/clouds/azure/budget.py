"""A monthly budget that sends e-mail. It stops nothing: Azure reports costs hours late."""

from __future__ import annotations

import datetime
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource
from pulumi_azure_native import consumption

from infra.clouds.azure.names import Base
from infra.clouds.dynamic_provider import PlainProvider


class MonthProvider(PlainProvider):
    """Reads the calendar in create, once; later runs take the month from the state."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        today = datetime.datetime.now(datetime.UTC)
        return CreateResult(id_=f"{today:%Y-%m}", outs={**props, "first": f"{today:%Y-%m}-01T00:00:00Z"})

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        changed = olds["of"] != news["of"]
        return DiffResult(changes=changed, replaces=["of"] if changed else [], delete_before_replace=False)

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        return ReadResult(id_=id_, outs=props)

    def delete(self, id_: str, props: dict[str, Any]) -> None:
        """Nothing to delete."""


class Month(Resource, module="azure", name="Month"):
    """The month in which something was made; `first` is its first day.

    Azure accepts a new budget only if it starts on the first day of the current month, so the date cannot be fixed in
    the program; and a program that computed it on each run would replace the budget every month.
    """

    first: pulumi.Output[str]

    def __init__(self, resource_name: str, *, of: pulumi.Input[str], opts: pulumi.ResourceOptions) -> None:
        """`of`: the id of the resource; another id gets a new month."""
        super().__init__(MonthProvider(), resource_name, {"of": of, "first": None}, opts)


def declare(base: Base) -> None:
    cloud = base.settings.cloud
    month = Month("month", of=base.group.id, opts=pulumi.ResourceOptions())
    consumption.Budget(
        "budget",
        budget_name=base.name("budget"),
        scope=base.group.id,
        amount=float(cloud.budget_usd),
        category="Cost",
        time_grain="Monthly",
        time_period=consumption.BudgetTimePeriodArgs(start_date=month.first),
        notifications={
            "spent": _alarm(cloud.alert_email, 80, "Actual"),
            "foreseen": _alarm(cloud.alert_email, 100, "Forecasted"),
        },
        opts=base.opts(),
    )


def _alarm(email: str, percent: float, of: str) -> consumption.NotificationArgs:
    return consumption.NotificationArgs(
        enabled=True, operator="GreaterThan", threshold=percent, threshold_type=of, contact_emails=[email]
    )
