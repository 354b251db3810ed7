"""Requirements whose text is not the operator's: from the head's record of a job, which the job can write.

pip on this machine gets names, extras, versions and markers of such a text, and nothing else. An option names other
files and other indexes, and lifts `--only-binary`. An address or a path is built here, and a build runs its code. pip
also replaces `${NAME}` by a variable of this machine.
"""

from __future__ import annotations

import re

from packaging.requirements import InvalidRequirement, Requirement

_MOST_LINES = 5000
_LONGEST = 1000
"""Characters of a line."""
_PLAIN = re.compile(r"[A-Za-z0-9 ._,;<>=!~()\[\]\"'+*-]+")
_ARCHIVES = (".whl", ".zip", ".tar", ".gz", ".tgz", ".bz2", ".tbz", ".xz", ".txz", ".lzma", ".tlz")
"""How names end that pip takes for files."""
_COMMENT = re.compile(r"(^|\s)#.*")


def plain_requirements(text: str) -> str:
    """Return the text's requirements, each on a line that is written anew from its parsed parts. ValueError, in one
    line, for an option, a direct reference or anything else that is no plain requirement."""
    lines = text.splitlines()
    if len(lines) > _MOST_LINES:
        raise ValueError(f"{len(lines)} lines; at most {_MOST_LINES} are taken")

    plain = []
    for line in lines:
        words = _COMMENT.sub("", line).strip()
        if words:
            plain.append(f"{_plain_requirement(words)}\n")
    return "".join(plain)


def _plain_requirement(line: str) -> str:
    """A requirement, written anew. pip looks for options in every word of a line, those between quotes included."""
    shown = ascii(line)[:80]
    if len(line) > _LONGEST:
        raise ValueError(f"{shown}...: longer than {_LONGEST} characters")
    try:
        requirement = Requirement(line)
    except (InvalidRequirement, RecursionError):
        raise ValueError(f"{shown}: not a plain requirement") from None
    if requirement.url is not None:
        raise ValueError(f"{shown}: names an address")
    if requirement.name.lower().endswith(_ARCHIVES):
        raise ValueError(f"{shown}: names a file")
    if any(each.operator == "===" for each in requirement.specifier):
        raise ValueError(f"{shown}: === is not taken")

    written = str(requirement)
    if not _PLAIN.fullmatch(written) or any(word.startswith("-") for word in written.split()):
        raise ValueError(f"{shown}: not a plain requirement")
    return written
