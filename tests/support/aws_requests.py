"""What a Pulumi resource is to AWS: the calls that the provider makes of its inputs, for the judge of forms."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import botocore.session
from aws_calls import OWN, REQUESTS, Call


@dataclass(frozen=True)
class Asked:
    """A call as it would be made."""

    service: str
    operation: str
    request: dict[str, Any]
    unknown: list[str]


def requests(type_: str, inputs: Mapping[str, Any]) -> list[Asked]:
    """The calls that the provider would make of a resource's inputs."""
    return [_asked(call, inputs) for call in REQUESTS[type_]] + _budget(type_, inputs)


def _asked(call: Call, inputs: Mapping[str, Any]) -> Asked:
    shape = botocore_model(call.service).operation_model(call.operation).input_shape
    request, unknown = dict(call.more), list[str]()
    paths = {"tags": OWN, **call.paths}
    by_group = "referencedSecurityGroupId" in inputs  # and then the description is the pair's
    for key, value in inputs.items():
        path = paths.get(key)
        if path is None and call.rest is None:
            continue
        if path is None:
            path = f"{call.rest}.{key}".lstrip(".")
        if key == "description" and by_group:
            path = path.replace("IpRanges", "UserIdGroupPairs")
        if path:
            inner = {name.partition(".")[2]: at for name, at in paths.items() if name.startswith(f"{key}.")}
            _put(request, shape, path, value, unknown, inner)
    return Asked(call.service, call.operation, request, unknown)


def _put(at: dict[str, Any], shape: Any, path: str, value: Any, unknown: list[str], names: Mapping[str, str]) -> None:
    """Put the value where the path says, its own keys spelled as the shape has them."""
    step, _, rest = path.partition(".")
    listed, step = step.endswith("[]"), step.removesuffix("[]")
    name = _spelled(shape, step)
    if name is None:
        unknown.append(f"{path}: the operation has no such member; enter it in aws_calls.py")
        return
    inner = shape.members[name]
    if listed:
        inner = inner.member
        entries = at.setdefault(name, [{}] if rest or inner.type_name == "structure" else [])
        if rest:
            _put(entries[0], inner, rest, value, unknown, names)
        elif inner.type_name == "structure":
            entries[0].update(_as(inner, value, unknown, names))
        else:
            entries.append(value)
    elif rest:
        _put(at.setdefault(name, {}), inner, rest, value, unknown, names)
    else:
        at[name] = _as(inner, value, unknown, names)


def _as(shape: Any, value: Any, unknown: list[str], names: Mapping[str, str]) -> Any:
    if shape.type_name == "structure" and isinstance(value, list) and len(value) == 1:
        value = value[0]  # a block that the provider has as a list
    if shape.type_name == "structure" and isinstance(value, Mapping):
        made: dict[str, Any] = {}
        for key, inner in value.items():
            target = names.get(key, key).rpartition(".")[2]
            _put(made, shape, target, inner, unknown, {})
        return made
    if shape.type_name == "list" and isinstance(value, Mapping) and shape.member.type_name == "structure":
        return [{"Key": key, "Value": inner} for key, inner in value.items()]  # tags
    if shape.type_name == "list" and isinstance(value, list):
        return [_as(shape.member, entry, unknown, names) for entry in value]
    if shape.type_name in ("integer", "long") and isinstance(value, float) and value == int(value):
        return int(value)
    return value


def _spelled(shape: Any, name: str) -> str | None:
    """The member of that name, in whatever case; or of which it is the plural, as the provider likes to have it."""
    for member in shape.members:
        if name.lower() in (member.lower(), f"{member.lower()}s"):
            return str(member)
    return None


def _budget(type_: str, inputs: Mapping[str, Any]) -> list[Asked]:
    """A budget's filters and alarms, which the provider turns into a map and into calls of their own."""
    if type_ != "aws:budgets/budget:Budget":
        return []
    filters = {entry["name"]: entry["values"] for entry in inputs.get("costFilters", [])}
    own = {"AccountId": "123456789012"}
    limit = {"BudgetName": inputs["name"], "TimeUnit": inputs["timeUnit"], "BudgetType": inputs["budgetType"]}
    asked = [Asked("budgets", "CreateBudget", {**own, "Budget": {**limit, "CostFilters": filters}}, [])]
    for alarm in inputs.get("notifications", []):
        subscribers = [{"SubscriptionType": "EMAIL", "Address": mail} for mail in alarm["subscriberEmailAddresses"]]
        names = {"ComparisonOperator": "comparisonOperator", "Threshold": "threshold", "ThresholdType": "thresholdType"}
        record = {name: alarm[key] for name, key in {**names, "NotificationType": "notificationType"}.items()}
        request = {**own, "BudgetName": inputs["name"], "Notification": record, "Subscribers": subscribers}
        asked.append(Asked("budgets", "CreateNotification", request, []))
    return asked


@functools.cache
def botocore_model(service: str) -> Any:
    return botocore.session.get_session().get_service_model(service)
