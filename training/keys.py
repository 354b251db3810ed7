"""Declares the keys of a TOML file and their allowed values, and reports a value that is not allowed in one line."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, TypeVar, get_type_hints

_Section = TypeVar("_Section")


class JobError(ValueError):
    """An invalid job: one line that names the key, the value and what is allowed."""


def key(default: Any, allowed: str, ok: Callable[[Any], bool]) -> Any:
    """A dataclass field with its default, a description of the allowed values, and the test `ok` for them."""
    return field(default=default, metadata={"allowed": allowed, "ok": ok})


def at_least(least: int, default: int) -> Any:
    """A whole number from `least` up."""
    return key(default, f"a whole number of at least {least}", lambda value: value >= least)


def fraction(default: float) -> Any:
    """A number in [0, 1)."""
    return key(default, "a number from 0 up to, but not including, 1", lambda value: 0 <= value < 1)


def positive(default: float) -> Any:
    """A finite number above 0."""
    return key(default, "a finite number above 0", lambda value: 0 < value < math.inf)


def not_negative(default: float) -> Any:
    """A finite number from 0 up."""
    return key(default, "a finite number of at least 0", lambda value: 0 <= value < math.inf)


def text(default: str, allowed: str = "any text") -> Any:
    """A text; it may be empty only if the default is."""
    return key(default, allowed, lambda value: bool(default == "" or value))


def one_of(*choices: str) -> Any:
    """One of these words; the first is the default."""
    return key(choices[0], " | ".join(choices), lambda value: value in choices)


def bounded(kind: type[int] | type[float], least: float, most: float = math.inf) -> Callable[[str], float]:
    """A type for argparse: a finite number from `least` to `most`."""

    def number(given: str) -> float:
        value = kind(given)
        if not least <= value <= most or value == math.inf:
            limit = f"at least {least}" if most == math.inf else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{given}; allowed: {limit}")
        return value

    number.__name__ = "whole number" if kind is int else "number"  # argparse shows it in its message
    return number


def known(prefix: str, given: Mapping[str, Any], allowed: list[str]) -> None:
    """JobError for a key that is not allowed, with the nearest one that is."""
    for name in given:
        if name not in allowed:
            close = difflib.get_close_matches(name, allowed, 1)
            hint = f" (did you mean {prefix}{close[0]}?)" if close else ""
            raise JobError(f"{prefix}{name}: no such key{hint}; allowed: {', '.join(allowed)}")


def section(section: str, cls: type[_Section], table: Any) -> _Section:
    """Turn a table of the file into its dataclass. JobError for an unknown key, a wrong type or a wrong value."""
    if not isinstance(table, dict):
        raise JobError(f"{section} = {table!r}: not a section; allowed: [{section}] with keys under it")
    types = get_type_hints(cls)
    known(f"{section}.", table, list(types))
    values = {}
    for item in dataclasses.fields(cls):  # type: ignore[arg-type]
        value = table.get(item.name, item.default)
        if types[item.name] is float and type(value) is int:
            value = float(value)
        if types[item.name] is str and isinstance(value, bool) and "true" in item.metadata["allowed"].split(" | "):
            value = json.dumps(value)
        if type(value) is not types[item.name] or not item.metadata["ok"](value):
            kind = {bool: "true or false", int: "whole number", float: "number", str: "text"}[types[item.name]]
            shown = "not given" if value == "" else json.dumps(value, default=str)
            raise JobError(f"{section}.{item.name} = {shown}; allowed: {item.metadata['allowed']} ({kind})")
        values[item.name] = value
    return cls(**values)
