"""The Pulumi program: reads the configuration, builds the cluster, exports inventory and price."""

from __future__ import annotations

import dataclasses
import signal

import pulumi
from pulumi.runtime.config import CONFIG

from infra import clusters
from infra.config.settings import load
from infra.errors import OperationError, UsageError
from infra.prices import table
from infra.state import stack_id


def main() -> None:
    """Build the cluster that the stack's configuration describes. A bad value ends the program with one line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C under Pulumi ends this process; Python's own handler would print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    project = f"{pulumi.get_project()}:"
    raw = {key.removeprefix(project): value for key, value in CONFIG.get().items() if key.startswith(project)}
    try:
        settings = load(pulumi.get_stack(), raw)
        settings = dataclasses.replace(settings, stack_id=stack_id.of_stack(settings.stack))
        hourly = table.total(clusters.of(settings).bill(settings))
        found = clusters.of(settings).build(settings)
    except (UsageError, OperationError) as error:
        raise pulumi.RunError(str(error)) from None
    pulumi.export("inventory", found)
    pulumi.export("hourlyUsd", round(hourly, 4))


main()
