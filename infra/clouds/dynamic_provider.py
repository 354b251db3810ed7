"""Base classes of our dynamic providers."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from pulumi.dynamic import ConfigureRequest, DiffResult, ResourceProvider

from infra.errors import OperationError, UsageError
from infra.state import operation


class PlainProvider(ResourceProvider):
    """A dynamic provider that reports failures as plain messages, and whose process ends with Pulumi's."""

    def configure(self, req: ConfigureRequest) -> None:
        """Pulumi calls this once for each provider, only in its provider processes.

        There Pulumi reports every failure with `traceback.format_exc()`, and uses that function for nothing else. It is
        replaced, so that an OperationError or UsageError shows its message only; other exceptions are bugs and keep
        their traceback.
        """
        original = traceback.format_exc

        def format_exc(limit: int | None = None, chain: bool = True) -> str:
            error = sys.exc_info()[1]
            return str(error) if isinstance(error, (OperationError, UsageError)) else original(limit, chain)

        traceback.format_exc = format_exc
        operation.end_with_engine()


class OnceProvider(PlainProvider):
    """For work done once in a machine's life: create does it, and only a new machine makes it run again.

    There is nothing to read, update or delete: the result goes with the machine.
    """

    machine = ""
    """Name of the input that changes when the machine is replaced."""
    delete_before_replace = False

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        """Replace the resource if its machine was replaced; nothing else counts as a change."""
        changed = olds[self.machine] != news.get(self.machine)  # missing: unknown yet, so a new machine is coming
        return DiffResult(
            changes=changed,
            replaces=[self.machine] if changed else [],
            delete_before_replace=self.delete_before_replace,
        )
