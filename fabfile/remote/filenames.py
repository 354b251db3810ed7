"""Check file names that come from a node, a bucket or a manifest: which may be used under a folder of ours."""

from __future__ import annotations

import unicodedata

LONGEST_PART = 255  # bytes; the limit of ext4, xfs and APFS
LONGEST = 1024


def refusal(name: str) -> str:
    """Why a name cannot be used under a folder; "" when it can: `a/b.txt` can. Refused are absolute names, `.`, `..`
    and empty parts, backslashes, characters that cannot be seen (control characters, line ends, changes of the writing
    direction), undecodable bytes, and names that are too long."""
    if name.startswith("/"):
        return "is an absolute path"
    if any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in name):
        return "has a character that cannot be seen"
    if "\\" in name:
        return "has a backslash"
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "has an empty part, '.' or '..'"
    if len(name.encode()) > LONGEST or any(len(part.encode()) > LONGEST_PART for part in parts):
        return "is too long"
    return ""
