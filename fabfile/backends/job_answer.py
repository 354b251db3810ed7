"""Check what a head, a scheduler or a bucket says of a job before any verb uses it.

A job runs as the user that owns its head's records, so it can write anything into them. An id
becomes the name of a folder or a file on the operator's machine (`fab fetch`, `fab report`, a
manager's record). It is checked here, once, where an answer is read; no verb checks it again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

JOB_ID_FORM = "NAME-NUMBER: letters, digits and '._-', then '-' and at most nine digits"
_JOB_ID = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]{0,199}-[0-9]{1,9}")
"""The name is a job file's `run.name` (training/sections.py) or a program's name (launch_file.py)."""
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_SHOWN_CHARACTERS = 80
"""Of a text in a message: a node may send a very long one."""

_TEXTS = ("reason", "slurm", "program", "ended_by")
_NUMBERS = ("created", "paused", "price_per_hour")
_NUMBERS_OR_NONE = ("started", "ended", "ended_before", "first_step")
_NODE_LISTS = ("nodes", "away")


def is_job_id(value: object) -> bool:
    """Say whether a value has the form of a job's id."""
    return isinstance(value, str) and _JOB_ID.fullmatch(value) is not None


def check_job_id(value: object) -> str:
    """Return the value as a job's id. Raises ValueError, with the form, for anything else."""
    if not is_job_id(value):
        raise ValueError(f"{_shown(value)} is no job's id: it must be {JOB_ID_FORM}")
    return str(value)


def check_record(record: Mapping[str, Any]) -> None:
    """Check the type and the form of each field of a job's record, as JobRecord has them.

    A key that is missing, and one that is no field's, is left to the caller. Raises ValueError that
    names the field.
    """
    if "id" in record:
        check_job_id(record["id"])
    for key in _TEXTS:
        _check(record, key, isinstance(record.get(key, ""), str), "text")
    for key in _NUMBERS:
        _check(record, key, _is_number(record.get(key, 0)), "a finite number")
    for key in _NUMBERS_OR_NONE:
        value = record.get(key)
        _check(record, key, value is None or _is_number(value), "a finite number or null")
    for key in _NODE_LISTS:
        _check(record, key, _are_node_names(record.get(key, [])), "a list of nodes' names")
    _check(record, "files_on", _is_node_name(record.get("files_on") or "head"), "a node's name")
    _check(record, "attempt", _is_whole(record.get("attempt", 0)), "a whole number")
    exit_code = record.get("exit_code")
    _check(record, "exit_code", exit_code is None or _is_whole(exit_code), "a whole number or null")
    _check(record, "queued", isinstance(record.get("queued", False), bool), "true or false")


def _check(record: Mapping[str, Any], key: str, fits: bool, allowed: str) -> None:
    if not fits:
        raise ValueError(f"{key} = {_shown(record[key])}: must be {allowed}")


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that is larger than any float
        return False


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31


def _is_node_name(value: object) -> bool:
    return isinstance(value, str) and _NODE_NAME.fullmatch(value) is not None


def _are_node_names(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_node_name, value))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
