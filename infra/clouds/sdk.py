"""Load what needs a cloud's SDK: large packages, which only those install who have a stack there."""

from __future__ import annotations

import importlib
from types import ModuleType

from infra.config.kinds import CLOUDS
from infra.errors import UsageError

_EXTRAS = {package: cloud.name for cloud in CLOUDS.values() for package in cloud.packages}
"""What a cloud's module imports -> the extra that installs it."""


def load(module: str) -> ModuleType:
    """The module. Raises UsageError, naming the extra to install, where the SDK that it needs is not there."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise UsageError(f"{error.name} is not installed: pip install -e '.[{extra}]'") from None
