"""The program that runs on the nodes: the package node/ as a zip that Python runs, copied to each node once.

A node without it receives it, checks the hash and renames it into place: no command runs half a file, and two
operators can do this at once. The file's name is its hash, but any job can write to it. So each command hashes what it
runs (node/checked_program.py), and a node with another file of that name receives the program again.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from fabfile.remote import wheel
from fabfile.remote.boot import NEVER_BOOTSTRAPPED
from fabfile.remote.command import Result, exit_status, last_words
from fabfile.remote.fleet import Connected, Connections, results_of
from fabfile.remote.known_hosts import SshError
from infra.inventory import Node
from node import FOLDER, checked_program
from node.checked_program import MISSING as MISSING

NO_PYTHON = 79
"""Exit code of `command` on a machine without Python, as a minimal Debian is before `fab bootstrap`."""
_PUT_SECONDS = 60.0
_OLD_DAYS = 14
"""Days that other versions stay: another checkout may be using this cluster. A running job has its own copy."""
_ROOT = FOLDER.parent
_MAIN = b"import sys\n\nfrom node.main import main\n\nsys.exit(main(sys.argv[1:]))\n"


@cache
def content() -> bytes:
    """The zip; equal sources give equal bytes. It has all modules that node/ may import (tests/test_imports.py)."""
    sources = [path for kind in ("*.py", "*.sh") for path in FOLDER.rglob(kind)]
    sources += [*_ROOT.glob("infra/inventory*.py"), *(_ROOT / "fabfile/launchers").glob("*.py")]
    files = {str(path.relative_to(_ROOT)): path.read_bytes() for path in sources}
    packages = {f"{folder}/__init__.py": b"" for name in files for folder in Path(name).parents if folder.name}
    return wheel.archive({**packages, **files, "__main__.py": _MAIN})


@cache
def digest() -> str:
    """SHA-256 of the zip, in hexadecimal."""
    return hashlib.sha256(content()).hexdigest()


def place() -> str:
    """The program's path on a node, as shell within double quotes. TRAINYARD_PREFIX is for tests."""
    return f"${{TRAINYARD_PREFIX:-$HOME}}/.cache/trainyard/node/{digest()[:16]}.pyz"


def command(*argv: str, python: str = "python3 -I -S", sudo: bool = False) -> str:
    """Shell that runs one of the program's commands (see node/main.py); it exits with NO_PYTHON and a line that says so
    where there is no Python, and with MISSING and a line without the program, or with another one in its place."""
    before = "sudo -n " if sudo else ""
    has_python = f"command -v {python.split()[0]} >/dev/null"
    needed = f"{has_python} || {{ echo {shlex.quote(NEVER_BOOTSTRAPPED)} >&2; exit {NO_PYTHON}; }}"
    return f'{needed}; exec {before}{python} {_checked()} "{place()}" {shlex.join(argv)}'


def copy_command(folder: str, *argv: str) -> str:
    """Shell that runs one of the program's commands from its copy beside the training package (node/install.py).

    It exits with MISSING and a line if the copy is not the program.

    Args:
        folder: of a version of the training package, on the node
        argv: the command's words
    """
    return f"python3 -I {_checked()} {shlex.join([f'{folder}/launch', *argv])}"


def _checked() -> str:
    return shlex.join(checked_program.words(digest()))


def run(
    fleet: Connections, *argv: str, nodes: Iterable[Node] | None = None, timeout: float, sudo: bool = False
) -> dict[str, Result]:
    """Run a command of the program on these nodes at once (default: all); copy the program to nodes without it."""
    line = command(*argv, sudo=sudo)
    results = fleet.run(line, nodes=nodes, timeout=timeout)
    missing = [fleet.cluster.node(name) for name, result in results.items() if result.exited == MISSING]
    if missing:
        _, wrong = results_of(lambda node: put(fleet.connection(node)), missing)
        results |= {name: Result(name, 1, reason=why) for name, why in wrong.items()}
        results |= fleet.run(line, nodes=[node for node in missing if node.name not in wrong], timeout=timeout)
    return results


def put(connection: Connected) -> None:
    """Copy the program to the node at the other end, if it lacks it. SshError says why that failed."""
    with connection.create_session() as channel:
        channel.settimeout(_PUT_SECONDS)
        channel.exec_command(_receive(len(content()), digest()))
        if channel.makefile("r").readline().strip() == "want":
            channel.sendall(content())
        channel.shutdown_write()
        code = exit_status(channel, _PUT_SECONDS)
        last = last_words(channel, f"exit code {code}", lines=2)
    if code != 0:
        what = "the program for nodes cannot be put into ~/.cache/trainyard"
        raise SshError(f"{connection.node.name}: {what}: {last}")


def _receive(size: int, sha256: str) -> str:
    """Shell that prints `have` or `want`; after `want` it reads `size` bytes from stdin and checks their hash. Anything
    else of the program's name, a folder or a link too, is put aside. On a failure the last line of its stderr is how
    much of the disk is free."""
    return f"""P="{place()}"
[ -f "$P" ] && [ ! -L "$P" ] && echo "{sha256}  $P" | sha256sum --check --status 2>/dev/null && echo have && exit
disk() {{ df -h --output=avail,size,target ~ | awk 'END {{ print $1 " of " $2 " free in " $3 }}'; }}
trap 'c=$?; rm -f "$T"; [ $c = 0 ] || disk >&2; exit $c' EXIT
umask 022; mkdir -p "${{P%/*}}" && T=$(mktemp "$P.XXXXXX") || exit
echo want
head -c {size} >"$T" && echo "{sha256}  $T" | sha256sum --check --status && chmod 644 "$T" || exit
if [ -d "$P" ] && [ ! -L "$P" ]; then mv -T "$P" "$T.old" || exit; fi
mv -fT "$T" "$P" || exit
find "${{P%/*}}" -mindepth 1 -maxdepth 1 -name '*.pyz*' -mtime +{_OLD_DAYS} ! -path "$P" -exec rm -rf {{}} + || :"""
