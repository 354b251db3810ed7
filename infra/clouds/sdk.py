"""Imports modules that need a cloud's SDK: large packages that only users of that cloud install."""

from __future__ import annotations

import importlib
from types import ModuleType

from infra.config.kinds import CLOUDS
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
