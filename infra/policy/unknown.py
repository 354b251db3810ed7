"""Values that are not known yet, as in a preview."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn


class UndecidedError(Exception):
    """A rule asked for a value that is not known yet."""


class Unknown:
    """Stands where a value is not known yet. That it was given is known; whatever else is asked of it is undecided.

    So a rule cannot take it for a value that passes: every comparison, test, loop and attribute raises.
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
    """The value, whole; raises UndecidedError where any part of it is not known."""
    if isinstance(value, Unknown):
        raise UndecidedError
    if isinstance(value, dict):
        return {key: known(item) for key, item in value.items()}
    if isinstance(value, list):
        return [known(item) for item in value]
    return value
