"""A monthly budget that sends e-mail. It stops nothing: Azure reports costs hours late."""

from __future__ import annotations

import datetime
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, Resource
from pulumi_azure_native import consumption

from infra.clouds.azure.names import Base
from infra.clouds.dynamic_provider import OnceProvider


class MonthProvider(OnceProvider):
    """Reads the calendar in create, once; later runs take the month from the state."""

    machine = "of"

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Record the current month, in UTC."""
        today = datetime.datetime.now(datetime.UTC)
        return CreateResult(id_=f"{today:%Y-%m}", outs={**props, "first": f"{today:%Y-%m}-01T00:00:00Z"})


class Month(Resource, module="azure", name="Month"):
    """The month in which something was made; `first` is its first day.

    Azure accepts a new budget only if it starts on the first day of the current month, so the date cannot be fixed in
    the program; and a program that computed it on each run would replace the budget every month.
    """

    first: pulumi.Output[str]

    def __init__(self, resource_name: str, *, of: pulumi.Input[str]) -> None:
        """`of`: the id of the resource; another id gets a new month."""
        super().__init__(MonthProvider(), resource_name, {"of": of, "first": None})


def declare(base: Base) -> None:
    """Declare the budget, with an alarm for what was spent and one for the month's forecast."""
    month = Month("month", of=base.group.id)
    consumption.Budget(
        "budget",
        budget_name=base.name("budget"),
        scope=base.group.id,
        amount=float(base.settings.cloud.budget_usd),
        category="Cost",
        time_grain="Monthly",
        time_period=consumption.BudgetTimePeriodArgs(start_date=month.first),
        notifications={"spent": _alarm(base, 80, "Actual"), "foreseen": _alarm(base, 100, "Forecasted")},
        opts=base.opts(),
    )


def _alarm(base: Base, percent: float, of: str) -> consumption.NotificationArgs:
    emails = [base.settings.cloud.alert_email]
    return consumption.NotificationArgs(
        enabled=True, operator="GreaterThan", threshold=percent, threshold_type=of, contact_emails=emails
    )
