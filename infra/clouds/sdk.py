"""Imports modules that need a cloud's SDK: large packages that only users of that cloud install."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType

from infra.config.kinds import CLOUDS, CloudFacts
from infra.errors import UsageError

_EXTRAS = {package: cloud.name for cloud in CLOUDS.values() for package in cloud.packages}
"""SDK package -> the extra that installs it."""


def load(module: str) -> ModuleType:
    """Import a module. Raises UsageError, naming the extra to install, if its SDK is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise UsageError(f"{error.name} is not installed: pip install -e '.[{extra}]'") from None


def plugins(cloud: CloudFacts) -> list[list[str]]:
    """[name, version] of each plugin of Pulumi's that the cloud's installed SDK needs, as the SDK itself says."""
    specs = [importlib.util.find_spec(package) for package in cloud.packages]
    files = [Path(spec.origin).with_name("pulumi-plugin.json") for spec in specs if spec and spec.origin]
    known = [json.loads(file.read_text()) for file in files if file.exists()]
    return [[one["name"], one["version"]] for one in known]
