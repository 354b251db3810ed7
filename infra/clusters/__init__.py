"""The kinds of cluster. One module each, all with the same functions:

check(settings)        raises UsageError for what can be known in advance; changes nothing
build(settings)        declares the cluster under Pulumi; returns its inventory as an output
bill(settings)         the costs, line by line, from the table alone (infra.prices.table)

infra.clouds.<cloud>.orphans finds and removes resources that are not in the state.
"""

from __future__ import annotations

from types import ModuleType

from infra.clouds import sdk
from infra.config.settings import Settings


def of(settings: Settings) -> ModuleType:
    """The module of the stack's kind of cluster. Imported on demand, as a cloud's SDK is large and optional.

    Raises UsageError, naming the extra to install, if the SDK is missing.
    """
    return sdk.load(f"infra.clusters.{settings.cluster.replace('-', '_')}")
