"""A budget of a month with an alarm. An alarm, not a switch: Azure reports costs with a delay of hours."""

from __future__ import annotations

import datetime
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource
from pulumi_azure_native import consumption

from infra.clouds.azure.names import Base
from infra.clouds.dynamic_provider import PlainProvider


class MonthProvider(PlainProvider):
    """Create looks at the calendar, once; from then on the state has the answer."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        today = datetime.datetime.now(datetime.UTC)
        return CreateResult(id_=f"{today:%Y-%m}", outs={**props, "first": f"{today:%Y-%m}-01T00:00:00Z"})

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        changed = olds["of"] != news["of"]
        return DiffResult(changes=changed, replaces=["of"] if changed else [], delete_before_replace=False)

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        return ReadResult(id_=id_, outs=props)

    def delete(self, id_: str, props: dict[str, Any]) -> None:
        """Nothing: a month goes by itself."""


class Month(Resource, module="azure", name="Month"):
    """The month in which something was made. `first` is its first day.

    Azure takes a new budget only with the first day of the current month, so no day can be written down here; and a
    program that looked at the calendar itself would replace the budget at each first of a month.
    """

    first: pulumi.Output[str]

    def __init__(self, resource_name: str, *, of: pulumi.Input[str], opts: pulumi.ResourceOptions) -> None:
        """`of` is what the month is of: another one has a month of its own."""
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
