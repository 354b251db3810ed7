"""Read a stack's configuration as Pulumi would: Pulumi.yaml's defaults under stacks/Pulumi.<stack>.yaml.

For what runs before or without Pulumi: the pre-flight, the audit and the embedded engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from infra.errors import UsageError

PROJECT = "trainyard"
ROOT = Path(__file__).resolve().parent.parent


def read(stack: str, root: Path = ROOT) -> dict[str, str]:
    """The stack's keys as text, defaults filled in.

    Raises UsageError for a file that is missing or not YAML, a key outside this project, or a secret (only
    `pulumi` can open those).
    """
    declared = _mapping(root / "Pulumi.yaml").get("config", {})
    values = {key: _text(spec["default"]) for key, spec in declared.items() if "default" in spec}
    path = root / "stacks" / f"Pulumi.{stack}.yaml"
    for name, value in (_mapping(path).get("config") or {}).items():
        key = str(name).removeprefix(f"{PROJECT}:")
        if ":" in key:
            continue  # a provider's own key, such as aws:region
        if isinstance(value, dict):
            raise UsageError(
                f"{path.name}: {key}: must be plain text, not {'a secret' if 'secure' in value else 'a mapping'}"
            )
        values[key] = _text(value)
    return values


def _text(value: object) -> str:
    """A YAML scalar as Pulumi hands it to a program: text, booleans in lower case."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _mapping(path: Path) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        names = sorted(p.name.removeprefix("Pulumi.").removesuffix(".yaml") for p in path.parent.glob("Pulumi.*.yaml"))
        raise UsageError(f"{path}: there is no such file; stacks there are: {', '.join(names)}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name}: not YAML: {' '.join(str(error).split())}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise UsageError(f"{path.name}: must be a mapping with the key `config`")
    return loaded
