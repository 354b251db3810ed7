"""What a manager on the head needs there: this checkout's code, and Python packages in an environment of their own."""

from __future__ import annotations

import importlib.metadata
import re
from functools import cache
from hashlib import sha256

from fabfile.remote import wheel
from fabfile.remote.deploy import Package, install
from fabfile.remote.fleet import Fleet
from fabfile.stacks.pulumi_cli import ROOT
from fabfile.workdir import requirements

_CODE = ("fabfile", "infra", "node", "training", "bootstrap")
_KINDS = (".py", ".toml", ".sh", ".env")
_NEEDED = ("fabric", "PyYAML", "pathspec", "packaging")
"""The packages that the manager imports, beside those that they need."""


def bring(fleet: Fleet) -> tuple[str, str]:
    """Bring it there; returns the folders with the code and with Python. Exit 1 if that fails."""
    head = fleet.cluster.head
    code = install(fleet, head, _package()).folder
    return code, requirements.ensure(fleet, [head], packages(), requirements.folder_of(fleet.cluster))[head.name]


@cache
def _package() -> Package:
    """This checkout's code for the manager."""
    files = {}
    for name in _CODE:
        for path in sorted((ROOT / name).rglob("*")):
            hidden = any(part[0] == "." for part in path.relative_to(ROOT).parts)
            if path.suffix in _KINDS and not hidden:  # nothing else that may lie there: the job's programs can read it
                files[str(path.relative_to(ROOT))] = path.read_bytes()
    content = wheel.archive(files)
    return Package(sha256(content).hexdigest()[:16], content)


def packages() -> str:
    """The Python packages that the manager needs, as pip's requirements, in the versions that are installed here."""
    found: dict[str, str] = {}
    left = [*_NEEDED]
    while left:
        name = left.pop()
        try:
            version, needs = importlib.metadata.version(name), importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:  # for another system, or another Python
            continue
        if name.lower() not in found:
            found[name.lower()] = f"{name}=={version}"
            left += [re.split(r"[^A-Za-z0-9._-]", line)[0] for line in needs if "extra ==" not in line]
    return "".join(f"{found[name]}\n" for name in sorted(found))
