"""The kinds of cluster. One module each, all with the same functions:

check(settings)        raises UsageError for what can be known before anything is touched; changes nothing
build(settings)        declares the cluster under Pulumi; its inventory, as an output
bill(settings)         what all of it costs, line by line, without asking anybody (infra.prices.table)

Resources that the state does not have are found and removed by infra.clouds.<cloud>.orphans.
"""

from __future__ import annotations

from types import ModuleType

from infra.clouds import sdk
from infra.config.settings import Settings


def of(settings: Settings) -> ModuleType:
    """The module of the stack's kind. Loaded only when asked for: a cloud's SDK is large, and not everybody's.

    Raises UsageError, naming the extra to install, where the SDK is not there.
    """
    return sdk.load(f"infra.clusters.{settings.cluster.replace('-', '_')}")
