"""Every version that this project pins, read where it stands, and what pins.toml says of it.

Standard library only: continuous integration runs it before anything is installed.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("pins.toml")
CONSTRAINTS = "constraints.txt"
NODES = "bootstrap/"
REQUIREMENT_FILES = ("pyproject.toml", CONSTRAINTS, "bootstrap/*versions.env", "bootstrap/*/versions.env")
WARN_DAYS = 90
"""Days before the end of support from which on it is reported."""

# A requirement stands at the start of a line, but for quotes and, in pyproject.toml, a key.
_REQUIREMENT = re.compile(r'^(?:requires = \[)?\s*"?([A-Za-z][\w.-]*?)(?:\[\w+\])?==([\w.]+)', re.MULTILINE)


@dataclass(frozen=True)
class Pin:
    """One version, with the files that have it."""

    name: str
    version: str
    files: tuple[str, ...]
    pypi: str = ""
    """Python package whose newest version is asked for; "" for none."""
    module: str = ""
    """Go module whose newest version is asked for; "" for none."""
    end: datetime.date | None = None
    """Last day of support; None where no source says it."""
    source: str = ""
    """Where the end of support was read."""
    reason: str = ""
    """Why it is not the newest."""


def canonical(name: str) -> str:
    """The name of a Python package as its registry compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def load_table() -> dict[str, Any]:
    """Read pins.toml."""
    return tomllib.loads(TABLE.read_text())


def requirement_versions(root: Path = ROOT) -> dict[str, dict[str, set[str]]]:
    """Return every Python package that is pinned: its name -> file -> versions there. A constraint may
    have one for each version of Python."""
    versions: dict[str, dict[str, set[str]]] = {}
    for pattern in REQUIREMENT_FILES:
        for path in sorted(root.glob(pattern)):
            for name, version in _REQUIREMENT.findall(path.read_text()):
                files = versions.setdefault(canonical(name), {})
                files.setdefault(str(path.relative_to(root)), set()).add(version)
    return versions


def version_in_file(entry: dict[str, Any], root: Path = ROOT) -> str:
    """Return the version that an entry of `pins` stands for. Raises LookupError unless its pattern fits
    exactly one line."""
    matches = re.findall(f"^{entry['pattern']}$", (root / entry["file"]).read_text(), re.MULTILINE)
    if len(matches) != 1:
        raise LookupError(f"{TABLE.name}: {entry['name']}: {len(matches)} lines of {entry['file']} fit, not one")
    return str(matches[0])


def versions_of_packages(root: Path = ROOT) -> dict[str, dict[str, set[str]]]:
    """Return `requirement_versions` with the entries of `pins` that are a Python package, too."""
    versions = requirement_versions(root)
    for entry in load_table()["pins"]:
        if "package" in entry:
            files = versions.setdefault(entry["package"], {})
            files.setdefault(entry["file"], set()).add(version_in_file(entry, root))
    return versions


def read_pins(root: Path = ROOT) -> list[Pin]:
    """Return every pin: the Python packages by name, then the others in the order of pins.toml."""
    table = load_table()
    pins = []
    for name, files in sorted(versions_of_packages(root).items()):
        known = dict(table["packages"].get(name, {}))
        known.setdefault("reason", _rule(table["rules"], files))
        version = " / ".join(sorted(set().union(*files.values())))
        pins.append(Pin(name, version, tuple(files), pypi=name, **known))
    for entry in table["pins"]:
        if "package" not in entry:
            known = {key: entry[key] for key in ("pypi", "module", "end", "source", "reason") if key in entry}
            pins.append(Pin(entry["name"], version_in_file(entry, root), (entry["file"],), **known))
    return pins


def _rule(rules: dict[str, str], files: dict[str, set[str]]) -> str:
    if any(file.startswith(NODES) for file in files):
        return rules["nodes"]
    if set(files) == {CONSTRAINTS}:
        return rules["resolved"]
    return ""


def end_warnings(pins: list[Pin], today: datetime.date) -> list[str]:
    """Return a line for each pin whose support ends within WARN_DAYS days or has ended, the earliest
    first."""
    lines = []
    dated = [(pin.end, pin) for pin in pins if pin.end is not None]
    for end, pin in sorted(dated, key=lambda each: each[0]):
        days = (end - today).days
        if days < 0:
            when = f"support ended on {end}, {-days} days ago"
        elif days <= WARN_DAYS:
            when = f"support ends on {end}, in {days} days"
        else:
            continue
        lines.append(f"{pin.name} {pin.version}: {when} ({pin.source})")
    return lines
