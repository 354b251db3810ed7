"""What our dynamic providers have in common."""

from __future__ import annotations

import sys
import traceback

from pulumi.dynamic import ConfigureRequest, ResourceProvider

from infra import operation
from infra.errors import OperationError


class PlainProvider(ResourceProvider):
    """A dynamic provider whose failures are shown in plain words, and whose process ends with Pulumi's."""

    def configure(self, req: ConfigureRequest) -> None:
        """Called in Pulumi's provider processes, once for each provider, and nowhere else.

        Pulumi's dynamic provider answers every failure with `traceback.format_exc()`. In its process, which has
        no other use for that function, an OperationError is its message alone; other exceptions are bugs, and
        keep their traceback.
        """
        original = traceback.format_exc

        def format_exc(limit: int | None = None, chain: bool = True) -> str:
            error = sys.exc_info()[1]
            return str(error) if isinstance(error, OperationError) else original(limit, chain)

        traceback.format_exc = format_exc
        operation.end_with_engine()
