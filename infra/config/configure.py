"""Shows or sets a stack's keys without Pulumi: `python -m infra.config.configure STACK [KEY VALUE]`.

Prints JSON: [{key, value, default, set}]. With KEY and VALUE the key is first written to the stack's file, whose other
lines and comments stay. A value that the settings' checks refuse is not written (exit code 2).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from dataclasses import replace

import yaml

from infra import clusters
from infra.config import stack_file
from infra.config.keys import KEYS
from infra.config.settings import Settings, load
from infra.config.values import KEY_TYPES, SettingsError
from infra.errors import UsageError, prints_json
from infra.prices.table import NoPrice

_PLAIN = re.compile(r"[A-Za-z0-9/~][A-Za-z0-9 ./~_@+-]*")
"""Text that the YAML base loader reads correctly without quotes."""


def listing(stack: str) -> list[dict[str, object]]:
    """Every key with its value, its default, and whether the stack's file sets it."""
    values, defaults = stack_file.read(stack), stack_file.defaults()
    own = _own(stack_file.path_of(stack).read_text(encoding="utf-8"))
    return [
        {"key": key, "value": values.get(key, ""), "default": defaults.get(key, ""), "set": key in own} for key in KEYS
    ]


def check_value(stack: str, key: str, value: str) -> None:
    """Raise UsageError for an unknown key or a bad value. Writes nothing."""
    raw = {**stack_file.read(stack), key: value}
    for name, declared in KEYS.items():  # required keys that are still missing must not block this one
        if declared.example and name != key and not raw.get(name):
            raw[name] = declared.example
    reads_key = key == "publicKey"  # for other keys the key file need not exist yet
    settings = load(stack, raw, reads_key=reads_key)
    if settings.facts.name:
        _check_in_cloud(settings if reads_key else replace(settings, public_key=f"{KEY_TYPES[0]} -"), key)


def _check_in_cloud(settings: Settings, key: str) -> None:
    """Raise SettingsError if this kind of cluster cannot take the key's value, as `fab up` would; NoPrice for a region
    without prices.

    An error about another key must not block this one: of a region and its zone, one has to be set first. Nor must a
    cloud's SDK that is not installed, which `fab up` asks for."""
    try:
        clusters.of(settings).check(settings)
    except SettingsError as error:
        if error.key == key:
            raise
    except UsageError:
        pass
    if key == "region":
        _check_prices(settings)


def _check_prices(settings: Settings) -> None:
    """Raise NoPrice if the table has none in the settings' region. One that has no price only for the machine type is
    no error here: of a region and its type, one has to be set first."""
    try:
        clusters.of(settings).bill(settings)
    except NoPrice as error:
        if not error.in_region:
            raise
    except UsageError:
        pass


def set_value(stack: str, key: str, value: str) -> None:
    """Write one key. Raises UsageError, and writes nothing, for an unknown key or a bad value."""
    check_value(stack, key, value)
    path = stack_file.path_of(stack)
    before = path.read_text(encoding="utf-8")
    after = edited(before, key, value)
    if _own(after) != {**_own(before), key: value}:
        raise UsageError(f"{path}: {key} cannot be set without changing other lines; edit the file")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(after, encoding="utf-8")
    temporary.replace(path)


def edited(text: str, key: str, value: str) -> str:
    """The file's text with one key set: its line changed, or a line added after the last key; all else stays."""
    shown = value if _PLAIN.fullmatch(value) and value == value.strip() else json.dumps(value)
    lines = text.splitlines()
    there = re.compile(rf"(\s+(?:{stack_file.PROJECT}:)?{re.escape(key)}:)\s*(?:\"[^\"]*\"|'[^']*'|[^#]*?)(\s+#.*)?\s*")
    for number, line in enumerate(lines):
        if match := there.fullmatch(line):
            lines[number] = f"{match[1]} {shown}{match[2] or ''}"
            return "\n".join([*lines, ""])
    new = f"  {stack_file.PROJECT}:{key}: {shown}"
    keys = [number for number, line in enumerate(lines) if re.match(rf"\s+{stack_file.PROJECT}:", line)]
    heads = [number for number, line in enumerate(lines) if line.startswith("config:")]
    if keys:
        lines.insert(keys[-1] + 1, new)
    elif heads:
        lines[heads[0] : heads[0] + 1] = ["config:", new]
    else:
        lines += ["config:", new]
    return "\n".join([*lines, ""])


def _own(text: str) -> dict[str, str]:
    """The keys that the stack's file itself sets."""
    try:
        loaded = yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError:
        return {}
    config = loaded.get("config") if isinstance(loaded, dict) else None
    return {name.removeprefix(f"{stack_file.PROJECT}:"): value for name, value in (config or {}).items()}


@prints_json
def main() -> list[dict[str, object]]:
    """Set the key named on the command line, if there is one; returns the listing, for JSON."""
    parser = argparse.ArgumentParser(prog="python -m infra.config.configure")
    parser.add_argument("stack")
    parser.add_argument("pair", nargs="*", help="KEY VALUE")
    parser.add_argument("--check", action="store_true", help="only check them")
    args = parser.parse_args()
    try:
        if args.pair:
            (check_value if args.check else set_value)(args.stack, *args.pair)
        return listing(args.stack)
    except OSError as error:
        raise UsageError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
