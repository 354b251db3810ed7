"""Before a keeper runs on a machine that was made anew under a job: bring it the job's programs and data from the head.

A folder that is there is left as it is. One that is missing is copied beside its place first and then renamed, so that
it is there whole or not at all, and a copy that was cut off goes on where it was.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Sequence

from node.scope import ALIVE, STRICT

COPIES = "copies"
"""The event that says that a folder is missing there, and on its way: {"event": "copies", "folder": ...}."""
_RSYNC = "rsync -a --delete --partial --timeout=120"  # seconds without a byte
_SSH = shlex.join(["ssh", "-x", *STRICT, *ALIVE])


def folders(code: str, job: str, shared_dir: str) -> list[str]:
    """What each node of a trainer's job has on its own disk, beside what the image has: the folder with its programs,
    `code`, and the token set, which its job.toml `job` names."""
    found = [code, str(tomllib.loads(job)["data"]["path"]).rstrip("/")]
    return [folder for folder in found if not (shared_dir and folder.startswith(shared_dir.rstrip("/") + "/"))]


def brought(node: str, paths: Sequence[str], then: Sequence[str]) -> list[str]:
    """The command that brings a node these folders, if they are missing there, and then becomes the command `then`;
    relative ones begin at the home directory. It ends where a step fails, with that step's words on stderr."""
    return ["sh", "-c", "\n".join(["set -e", "cd", *(_copy(node, path) for path in paths), f"exec {shlex.join(then)}"])]


def _copy(node: str, path: str) -> str:
    node, there, part = shlex.quote(node), shlex.quote(path), shlex.quote(f"{path}.part")
    own = 'mkdir -p "$d" 2>/dev/null && [ -w "$d" ] || sudo -n install -d -o "$(id -un)" -g "$(id -gn)" "$d"'
    missing = f"[ -d {there} ] || {{ d=$(dirname {there}); {own}; echo missing; }}"
    event = json.dumps({"event": COPIES, "folder": path})
    return f"""missing=$({_SSH} -n {node} {shlex.quote(missing)})
if [ "$missing" ]; then
    echo {shlex.quote(event)}
    {_RSYNC} -e {shlex.quote(_SSH)} {there}/ {node}:{part}/
    {_SSH} -n {node} {shlex.quote(f"mv -T {part} {there}")}
fi"""
