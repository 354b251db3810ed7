"""What our dynamic providers have in common."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from pulumi.dynamic import ConfigureRequest, DiffResult, ResourceProvider

from infra.errors import OperationError, UsageError
from infra.state import operation


class PlainProvider(ResourceProvider):
    """A dynamic provider whose failures are shown in plain words, and whose process ends with Pulumi's."""

    def configure(self, req: ConfigureRequest) -> None:
        """Called in Pulumi's provider processes, once for each provider, and nowhere else.

        Pulumi's dynamic provider answers every failure with `traceback.format_exc()`. In its process, which has
        no other use for that function, an OperationError or UsageError is its message alone; other exceptions
        are bugs, and keep their traceback.
        """
        original = traceback.format_exc

        def format_exc(limit: int | None = None, chain: bool = True) -> str:
            error = sys.exc_info()[1]
            return str(error) if isinstance(error, (OperationError, UsageError)) else original(limit, chain)

        traceback.format_exc = format_exc
        operation.end_with_engine()


class OnceProvider(PlainProvider):
    """For what is done once in the life of a machine: create does it, only another machine is another time.

    Nothing of it is there to be read, updated or deleted by itself: it goes with its machine.
    """

    machine = ""
    """The input that only this machine has."""
    delete_before_replace = False

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        changed = olds[self.machine] != news.get(self.machine)  # not there: not known yet, of one to be made
        return DiffResult(
            changes=changed,
            replaces=[self.machine] if changed else [],
            delete_before_replace=self.delete_before_replace,
        )
