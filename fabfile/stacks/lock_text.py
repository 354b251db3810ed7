"""Pulumi's text about a lock on a stack, caught, and our line in its place: who holds it, since when, what to do.

A file backend names each holder's process. Pulumi Cloud says only that there is one; who has asked for that update, and
when, is then in `pulumi stack`.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from datetime import UTC, datetime

from fabfile.output import duration, hint

_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_BEGINS = b"the stack is currently locked by "
_HOLDER = re.compile(
    rb" +\S+/(?P<stack>[^/\s]+)/[^/\s]+: created by (?P<user>.*)@(?P<host>\S+) \(pid (?P<pid>[0-9]+)\) "
    rb"at (?P<since>\S+)\s*"
)
_CONFLICT = b"[409] Conflict: Another update is currently in progress"
_MORE = b"To learn more about possible reasons and resolution"
_OF_UPDATE = re.compile(r"^\s*(Started|Requested By): (.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Holder:
    """A process that holds a stack's lock, as the lock says."""

    stack: str
    user: str
    host: str
    pid: int
    since: datetime

    def said(self, now: datetime) -> str:
        """One line: who it is, since when, and what to do."""
        ago = duration(max(0.0, (now - self.since).total_seconds()))
        who = f"process {self.pid} of {self.user} on {self.host}"
        since = f"{self.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({ago} ago)"
        here = self.host == socket.gethostname()
        if here and not is_alive(self.pid):
            return hint(f"stack {self.stack}: {who}, which began {since}, has ended and left its lock: fab recover")
        elsewhere = hint("; if it was killed, there: fab recover")
        line = f"stack {self.stack}: {who} is at work on it since {since}; wait for it, or stop it"
        return line if here else line + elsewhere


def in_cloud(stack: str, shown: str) -> str:
    """Our line for a stack on which another update runs by Pulumi Cloud. `shown`: what `pulumi stack` prints of it;
    empty, or without such an update: not known."""
    facts = dict(_OF_UPDATE.findall(shown.partition("Update in progress")[2]))
    who = facts.get("Requested By") or "somebody"
    since = f", begun {facts['Started']}" if facts.get("Started") else ""
    wait = "wait for it, or stop it; if it was killed: fab recover"
    return hint(
        f"stack {stack}: {who} is at work on it{since} (by Pulumi Cloud, which keeps one update at a time); {wait}"
    )


class LockText:
    """A filter of Pulumi's stderr, line by line: it keeps back what that says of a lock, and has its holders."""

    def __init__(self) -> None:
        self.holders: list[Holder] = []
        self.is_in_cloud = False
        """Whether Pulumi Cloud has refused the command, as another one is under way."""
        self._begun = self._kept = b""
        self._inside = False

    def passed(self, data: bytes) -> bytes:
        """What of the output so far can be shown."""
        lines = (self._begun + data).splitlines(keepends=True)
        self._begun = lines.pop() if lines and not lines[-1].endswith((b"\n", b"\r")) else b""
        return b"".join(line for line in lines if not self._is_of_lock(line))

    def rest(self) -> bytes:
        """What is left to show at the end: a line without an end, and a lock's text in which no holder was found."""
        line = b"" if self._is_of_lock(self._begun) else self._begun
        return line if self.holders else self._kept + line

    def _is_of_lock(self, line: bytes) -> bool:
        plain = _COLOUR.sub(b"", line)
        if _CONFLICT in plain or (self.is_in_cloud and plain.startswith(_MORE)):
            self.is_in_cloud = True
            return True
        if _BEGINS in plain:
            self._inside = True
        elif self._inside and (found := _HOLDER.fullmatch(plain)):
            stack, user, host = (found[name].decode(errors="replace") for name in ("stack", "user", "host"))
            self.holders.append(Holder(stack, user, host, int(found["pid"]), _time(found["since"])))
        else:
            self._inside = False
        self._kept += line if self._inside else b""
        return self._inside


def _time(text: bytes) -> datetime:
    return datetime.fromisoformat(text.decode(errors="replace"))


def is_alive(pid: int) -> bool:
    """A zombie is not: a killed process whose parent has not yet asked for its exit code still has its id."""
    import psutil  # here, as it would cost every verb 15 ms at its start

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except (psutil.NoSuchProcess, ValueError):  # ValueError: the -1 of a lock whose writing was cut off
        return False
