"""A monthly budget that sends e-mail. It stops nothing: maxHours and idleMinutes end the nodes."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra.clouds.aws.names import named
from infra.clouds.naming import ID_TAG, STACK_TAG
from infra.config.settings import Settings

ALARMS = ((80.0, "ACTUAL"), (100.0, "ACTUAL"), (100.0, "FORECASTED"))
"""(percent of the monthly budget, actual or forecast spending)."""


def declare(settings: Settings, opts: pulumi.ResourceOptions) -> None:
    """Counts what carries the stack's id. AWS filters by a tag only once the billing console activates it."""
    tag, value = (ID_TAG, settings.stack_id) if settings.stack_id else (STACK_TAG, settings.stack)
    aws.budgets.Budget(
        "budget",
        name=named(settings),
        budget_type="COST",
        limit_amount=str(settings.cloud.budget_usd),
        limit_unit="USD",
        time_unit="MONTHLY",
        cost_filters=[aws.budgets.BudgetCostFilterArgs(name="TagKeyValue", values=[f"user:{tag}${value}"])],
        notifications=[
            aws.budgets.BudgetNotificationArgs(
                comparison_operator="GREATER_THAN",
                threshold=threshold,
                threshold_type="PERCENTAGE",
                notification_type=kind,
                subscriber_email_addresses=[settings.cloud.alert_email],
            )
            for threshold, kind in ALARMS
        ],
        opts=opts,
    )
