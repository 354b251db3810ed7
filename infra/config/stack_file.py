"""Reads a stack's configuration as Pulumi would: stacks/Pulumi.<stack>.yaml over the defaults of Pulumi.yaml.

For code that runs before or without Pulumi: the pre-flight, the audit and the embedded engine.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml

from infra.config.settings import ROOT, Settings, check_stack, load
from infra.config.values import SettingsError
from infra.errors import UsageError

PROJECT = "trainyard"


def path_of(stack: str, root: Path = ROOT) -> Path:
    """The path of the stack's file, which may not exist."""
    return root / "stacks" / f"Pulumi.{stack}.yaml"


def defaults(root: Path = ROOT) -> dict[str, str]:
    """The defaults in Pulumi.yaml, as text."""
    declared = _mapping(root / "Pulumi.yaml").get("config", {})
    return {key: _text(key, spec["default"]) for key, spec in declared.items() if "default" in spec}


def read(stack: str, root: Path = ROOT) -> dict[str, str]:
    """The stack's keys as text, with defaults filled in.

    Raises UsageError for a stack without a file, invalid YAML, and a value that is a list, a mapping or a secret (which
    only `pulumi` can decrypt).
    """
    check_stack(stack)
    values = defaults(root)
    path = path_of(stack, root)
    if not path.exists():
        there = sorted(p.name.removeprefix("Pulumi.").removesuffix(".yaml") for p in path.parent.glob("Pulumi.*.yaml"))
        raise SettingsError("stack", stack, f"one with a file stacks/Pulumi.<stack>.yaml, such as {', '.join(there)}")
    config = _mapping(path).get("config") or {}
    if not isinstance(config, dict):
        raise UsageError(f"{path.name}: config: must be a mapping of keys and values")
    for name, value in config.items():
        key = name.removeprefix(f"{PROJECT}:")
        if ":" not in key:  # keys with a colon are a provider's own, such as aws:region
            values[key] = _text(key, value)
    return values


def settings(stack: str) -> Settings:
    """The validated settings of a stack. Raises UsageError."""
    return load(stack, read(stack))


def settings_to_find(stack: str) -> Settings:
    """The settings of a stack that is priced, found or removed, and not made: on another machine, or with a file that
    was put back, nobody has to give a key and an address first. Raises UsageError for a value that is wrong."""
    return load(stack, read(stack), reads_key=False, is_complete=False)


def _text(key: str, value: object) -> str:
    if isinstance(value, str):
        return value
    is_secret = isinstance(value, dict) and "secure" in value
    what = "a secret" if is_secret else "a list" if isinstance(value, list) else "a mapping"
    raise SettingsError(key, what, "plain text")


def _mapping(path: Path) -> dict[str, Any]:
    try:
        loaded = _parsed(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UsageError(f"{path.name}: not YAML that can be read: nested too deeply") from None
    if loaded in (None, ""):
        return {}
    if not isinstance(loaded, dict):
        raise UsageError(f"{path.name}: must be a mapping with the key `config`")
    return loaded


@functools.cache
def _parsed(text: str) -> Any:
    """Kept, as a command reads Pulumi.yaml several times, and parsing it takes 13 ms. Nobody may change what is in it.

    The base loader leaves every scalar as text, so that nothing becomes a date or an octal number.
    """
    return yaml.load(text, Loader=yaml.BaseLoader)
