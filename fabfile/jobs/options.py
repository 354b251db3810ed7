"""`fab train JOB.toml section.key=value ...`, prepare and data: what invoke would take for the next verb is the job's.

The words that fabric's program has not parsed yet are put into its own form: each `section.key=value` becomes
`--set section.key=value`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import fabric.main  # type: ignore[import-untyped]

_OVERRIDE = re.compile(r"[a-z_]+\.[a-z0-9_]+=.*", re.DOTALL)


def accept_overrides() -> None:
    """To be called while the program loads this collection: after its own flags, before those of the verbs."""
    core = getattr(fabric.main.program, "core", None)
    if core is not None:  # else it is not the program that imports us
        core.unparsed[:] = rewritten(core.unparsed)


def rewritten(words: Sequence[str]) -> list[str]:
    """The words as invoke reads them."""
    if words[:1] not in (["train"], ["prepare"], ["data"]):
        return list(words)
    before = ["", *words]
    pairs = zip(before, words, strict=False)
    return [
        part
        for previous, word in pairs
        for part in (["--set", word] if _OVERRIDE.fullmatch(word) and previous != "--set" else [word])
    ]
