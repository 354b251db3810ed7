"""The user's own record of a stack: its id, and where it has been. It survives the loss of the state.

    ~/.trainyard/ids/<stack>/<backend>.json      {"backend", "id", "locations"}

One file for each backend that may have a stack of this name: a user may have one in a file and another in a bucket. It
is written before anything is made, so that `recover` knows the id of a first `up` that was killed, and removed by a
`fab destroy` that left nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infra.errors import UsageError
from infra.state.ownership import Location

BACKEND = "TRAINYARD_BACKEND"
"""Set by the embedded engine and by `fab`: names the backend where Pulumi's own variable does not."""
ID = re.compile(r"[0-9a-f]{8}")


@dataclass(frozen=True)
class Record:
    """The content of one file."""

    id: str
    locations: tuple[Location, ...] = ()


def own_folder(*parts: str) -> Path:
    """A folder below the user's ~/.trainyard, made if it is missing. Raises UsageError if it cannot be made."""
    folder = Path.home().joinpath(".trainyard", *parts)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        remedy = "Trainyard stores its records in your home directory: set HOME to a directory that you can write to"
        raise UsageError(f"{folder}: cannot be made ({error.strerror}); {remedy}") from None
    return folder


def backend() -> str:
    """Name of the state's backend; the same in the program, its providers and the verbs."""
    return os.environ.get(BACKEND) or os.environ.get("PULUMI_BACKEND_URL") or "file://~"


def path(stack: str) -> Path:
    """The record's file for this stack and backend."""
    name = hashlib.sha256(backend().encode()).hexdigest()[:12]
    return Path.home() / ".trainyard" / "ids" / stack / f"{name}.json"


def read(stack: str) -> Record | None:
    """The record, or None. Raises UsageError for a damaged file."""
    file = path(stack)
    try:
        loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if not ID.fullmatch(str(loaded["id"])):
            raise ValueError(f"id = {loaded['id']!r}")
        return Record(loaded["id"], tuple(Location.read(entry) for entry in loaded["locations"]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file}: not a stack's record ({error}); move it away, and run the verb again") from None


def reserve(stack: str) -> str:
    """The id that the stack's next `up` uses: the recorded one, or a new one, which is recorded first.

    Every call returns the same, so a preview shows the names that the following `up` makes.
    """
    known = read(stack)
    if known is not None:
        return known.id
    _write(stack, secrets.token_hex(4), (), new=True)
    written = read(stack)  # if two programs run at once, both use what the first one wrote
    if written is None:
        raise UsageError(f"{path(stack)}: was removed while it was written; run the verb again")
    return written.id


def remember(stack: str, stack_id: str, locations: Sequence[Location]) -> None:
    """Add places to the record. An id that differs from the record's comes from the state, and replaces it."""
    known = read(stack)
    before = known.locations if known else ()
    _write(stack, stack_id, (*before, *(entry for entry in locations if entry not in before)))


def forget(stack: str) -> None:
    """Remove the record of a stack that no longer exists."""
    file = path(stack)
    file.unlink(missing_ok=True)
    for folder in (file.parent, file.parent.parent):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _write(stack: str, stack_id: str, locations: Sequence[Location], *, new: bool = False) -> None:
    """Write the file atomically. `new`: only if there is none yet."""
    file = path(stack)
    own_folder(*file.parts[-3:-1])
    body = {"backend": backend(), "id": stack_id, "locations": [asdict(entry) for entry in locations]}
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
        with suppress(FileExistsError):  # another program was first; the caller reads what it wrote
            if new:
                os.link(temporary, file)
            else:
                temporary.replace(file)
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
