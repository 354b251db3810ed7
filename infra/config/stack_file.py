"""Read a stack's configuration as Pulumi would: Pulumi.yaml's defaults under stacks/Pulumi.<stack>.yaml.

For what runs before or without Pulumi: the pre-flight, the audit and the embedded engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from infra.config.settings import ROOT, check_stack
from infra.config.values import SettingsError
from infra.errors import UsageError

PROJECT = "trainyard"


def path_of(stack: str, root: Path = ROOT) -> Path:
    """The stack's file, whether it is there or not."""
    return root / "stacks" / f"Pulumi.{stack}.yaml"


def defaults(root: Path = ROOT) -> dict[str, str]:
    """The keys that Pulumi.yaml has a default for, as text."""
    declared = _mapping(root / "Pulumi.yaml").get("config", {})
    return {key: _text(key, spec["default"]) for key, spec in declared.items() if "default" in spec}


def read(stack: str, root: Path = ROOT) -> dict[str, str]:
    """The stack's keys as text, defaults filled in.

    Raises UsageError for a stack without a file, a file that is not YAML, and a value that is a list, a mapping
    or a secret (only `pulumi` can open those).
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
        if ":" not in key:  # else it is a provider's own key, such as aws:region
            values[key] = _text(key, value)
    return values


def _text(key: str, value: object) -> str:
    if isinstance(value, str):
        return value
    is_secret = isinstance(value, dict) and "secure" in value
    what = "a secret" if is_secret else "a list" if isinstance(value, list) else "a mapping"
    raise SettingsError(key, what, "plain text")


def _mapping(path: Path) -> dict[str, Any]:
    try:
        # The base loader leaves every scalar the text that the user wrote: nothing is a date or octal by surprise.
        loaded = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
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
