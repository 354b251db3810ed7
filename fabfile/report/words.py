"""`fab report ID ID2`: invoke has no word that may be left out, and would take the second for the next verb's name.

So the words that fabric's program has not parsed yet are put into its own form: `fab report ID --id2 ID2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import fabric.main  # type: ignore[import-untyped]

_ALONE = ("-h", "--help")


def accept_second() -> None:
    """To be called while the program loads this collection: after its own flags, before those of the verbs."""
    core = getattr(fabric.main.program, "core", None)
    if core is not None:  # else it is not the program that imports us
        core.unparsed[:] = rewritten(core.unparsed)


def rewritten(words: Sequence[str]) -> list[str]:
    """The words as invoke reads them."""
    if list(words[:1]) != ["report"]:
        return list(words)
    found, bare = [words[0]], 0
    for previous, word in pairwise(words):
        is_value = previous.startswith("-") and "=" not in previous and previous not in _ALONE
        bare += not word.startswith("-") and not is_value
        found += ["--id2", word] if bare == 2 and not word.startswith("-") and not is_value else [word]
    return found
