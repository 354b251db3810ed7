"""Values that are unknown in a preview."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn


class UndecidedError(Exception):
    """A rule needs a value that is not known yet."""


class Unknown:
    """Placeholder for an unknown value. It counts as given; any other question about it is undecided.

    Every comparison, test, loop and attribute raises, so that a rule cannot let it pass by mistake.
    """

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "<not known yet>"

    def _undecided(self, *args: object) -> NoReturn:
        raise UndecidedError

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _undecided
    __bool__ = __len__ = __contains__ = __getitem__ = __str__ = __int__ = __float__ = _undecided

    def __iter__(self) -> Iterator[Any]:
        raise UndecidedError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UndecidedError


UNKNOWN = Unknown()


def known(value: Any) -> Any:
    """The value itself. Raises UndecidedError if any part of it is unknown."""
    if isinstance(value, Unknown):
        raise UndecidedError
    if isinstance(value, dict):
        return {key: known(item) for key, item in value.items()}
    if isinstance(value, list):
        return [known(item) for item in value]
    return value
