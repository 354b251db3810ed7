"""Who owns a local stack. Directories, control groups and bridge are named after it, so a name exists once per machine.

`stacks/<stack>/owner.json` is written before anything of the stack is made, and removed last. Another user, or the same
one with another home directory, is refused the name.
"""

from __future__ import annotations

import datetime
import json
import os
import pwd
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.clouds.local import paths
from infra.errors import OperationError, UsageError
from infra.state import operation


@dataclass(frozen=True)
class Owner:
    """The user who made a stack on this machine."""

    stack_id: str
    user: str
    home: str
    """Home directory, which has the stack's state."""
    since: str
    """When the stack was made, in UTC."""

    def in_words(self) -> str:
        """Who made the stack, where and when, for messages."""
        return f"{self.user} (home {self.home}, since {self.since}), stack id {self.stack_id}"


def read(stack: str) -> Owner | None:
    """The owner's record; None if the name is free, or a version without records made the stack."""
    file = _file(stack)
    try:
        return Owner(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise OperationError(f"{file}: does not say whose stack {stack} is: {error}") from None


def stranger(stack: str, ids: Collection[str]) -> str:
    """Who else owns the stack, in words; empty if one of these ids owns it, or the name is free."""
    owner = read(stack)
    return owner.in_words() if owner is not None and owner.stack_id not in ids else ""


def check(stack: str, ids: Collection[str]) -> None:
    """Raise UsageError if another user has the name."""
    if whose := stranger(stack, ids):
        raise UsageError(taken(stack, whose))


def taken(stack: str, whose: str) -> str:
    """The message that refuses a name."""
    remedy = f"take another name: copy the file stacks/Pulumi.{stack}.yaml, with another cidr in it, and use --stack"
    return f"stack {stack}: on this machine it is the stack of {whose}; {remedy}"


def claim(stack: str, stack_id: str) -> None:
    """Take the name. Raises OperationError if another user has it."""
    paths.close()
    with operation.lock(paths.stack(stack)):
        if whose := stranger(stack, [stack_id]):
            raise OperationError(taken(stack, whose))
        if read(stack) is None:
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
            _write(stack, Owner(stack_id, _user(), str(Path.home()), now))


def release(stack: str, stack_id: str) -> None:
    """Give the name back. Another user's record stays."""
    owner = read(stack)
    if owner is not None and owner.stack_id == stack_id:
        _file(stack).unlink(missing_ok=True)
    paths.tidy(stack)


def _write(stack: str, owner: Owner) -> None:
    """Write the record with a hard link: only the first of two writers succeeds, and the file is never half written."""
    temporary = _file(stack).with_name(f".owner.{os.getpid()}")
    temporary.write_text(json.dumps(asdict(owner), indent=1) + "\n", encoding="utf-8")
    try:
        os.link(temporary, _file(stack))
    except FileExistsError:
        raise OperationError(taken(stack, stranger(stack, [owner.stack_id]) or "another `up`, this moment")) from None
    finally:
        temporary.unlink()


def _file(stack: str) -> Path:
    return paths.stack(stack) / "owner.json"


def _user() -> str:
    """The user's name; under sudo, that of who called it."""
    with suppress(KeyError):
        return os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name
    return f"user {os.getuid()}"
