"""What Pulumi's command says where it cannot keep its files, and our line in its place: what to set."""

from __future__ import annotations

import os
import re

_NO_STATE = re.compile(r'unable to open state directory "(?P<url>[^"]*)".*: stat (?P<folder>.+): (?P<why>[^:\n]+)$')
_NOT_MADE = re.compile(r"mkdir (?P<folder>.*/\.pulumi\b.*): (?P<why>[^:\n]+)$")
_URL, _OWN = "PULUMI_BACKEND_URL", "PULUMI_HOME"


def line_for(said: str) -> str:
    """Our line for what a command of Pulumi's printed when it failed; empty: it is about something else."""
    found = _NO_STATE.search(said) or _NOT_MADE.search(said)
    if found is None:
        return ""
    what = f"{found['folder']}: {found['why']}"
    if _URL in os.environ and "url" in found.groupdict():
        return f"{_URL} = {os.environ[_URL]}: {what}: set it to file:// and a folder that is there"
    known = ((_URL, "file:///FOLDER"), (_OWN, "/FOLDER"))
    unset = [f"{name}={value}" for name, value in known if name not in os.environ]
    wanted = ", ".join(unset) or f"{_URL} or {_OWN} to another folder"
    why = "Pulumi takes the home directory of the password database, whatever HOME says"
    return f"{what}: {why}: set {wanted}, and HOME for Trainyard's own files"
