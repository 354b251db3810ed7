"""Whose a local stack is. Its directories, control groups and bridge are named after it, so a machine has it once.

`stacks/<stack>/owner.json` is written before anything of the stack is made, and goes last. Another user, or the same
one with another home, is refused the name.
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


class OwnerError(OperationError):
    """A stack of this name that is another's."""


@dataclass(frozen=True)
class Owner:
    """Who has made a stack on this machine."""

    stack_id: str
    user: str
    home: str
    """Their home directory, where the stack's state is."""
    since: str
    """When, in UTC."""

    def said(self) -> str:
        return f"{self.user} (home {self.home}, since {self.since}), stack id {self.stack_id}"


def read(stack: str) -> Owner | None:
    """The owner's record of the stack; None where the name is free, or an older version without records made it."""
    file = _file(stack)
    try:
        return Owner(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise OwnerError(f"{file}: does not say whose stack {stack} is: {error}") from None


def stranger(stack: str, ids: Collection[str]) -> str:
    """Whose the stack is, in words; empty where one of these ids owns it, or its name is free."""
    owner = read(stack)
    return owner.said() if owner is not None and owner.stack_id not in ids else ""


def check(stack: str, ids: Collection[str]) -> None:
    """Raise UsageError where another user has the name."""
    if whose := stranger(stack, ids):
        raise UsageError(taken(stack, whose))


def taken(stack: str, whose: str) -> str:
    """The line that refuses a name."""
    return (
        f"stack {stack}: on this machine it is the stack of {whose}; take another name: copy the file "
        f"stacks/Pulumi.{stack}.yaml, with another cidr in it, and use --stack"
    )


def claim(stack: str, stack_id: str) -> None:
    """Take the name. Raises OwnerError where another user has it."""
    with operation.lock(paths.stack(stack)):
        whose = stranger(stack, [stack_id])
        if whose:
            raise OwnerError(taken(stack, whose))
        if read(stack) is None:
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
            _write(stack, Owner(stack_id, _user(), str(Path.home()), now))


def release(stack: str, stack_id: str) -> None:
    """Give the name back; a name of another user stays as it is."""
    owner = read(stack)
    if owner is not None and owner.stack_id == stack_id:
        _file(stack).unlink(missing_ok=True)
    paths.tidy(stack)


def _write(stack: str, owner: Owner) -> None:
    """As a link, which the first of two takes, and which is never half a file."""
    temporary = _file(stack).with_name(f".owner.{os.getpid()}")
    temporary.write_text(json.dumps(asdict(owner), indent=1) + "\n", encoding="utf-8")
    try:
        os.link(temporary, _file(stack))
    except FileExistsError:
        raise OwnerError(taken(stack, stranger(stack, [owner.stack_id]) or "another `up`, this moment")) from None
    finally:
        temporary.unlink()


def _file(stack: str) -> Path:
    return paths.stack(stack) / "owner.json"


def _user() -> str:
    """The person: who has called sudo, if it was that."""
    with suppress(KeyError):
        return os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name
    return f"user {os.getuid()}"
