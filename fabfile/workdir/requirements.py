"""A program's extra Python packages: read and checked here, installed on the nodes before the job is created."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit

from fabfile.output import plural, prefixed, say
from fabfile.remote import node_program
from fabfile.remote.command import TIMED_OUT, follow
from fabfile.remote.fleet import Connections, results_of
from fabfile.remote.known_hosts import SshError
from fabfile.workdir.node_python import NodePython, read_node_python
from fabfile.workdir.wheels import download_wheels
from infra.inventory import Node, SshCluster

_LONGEST = 1 << 20  # bytes of a file of requirements
_SECONDS = 3600.0  # limit for all downloads and builds
_PIECE = 1 << 20  # bytes that are sent at once
_SHOWN = ("Making", "Collecting", "Downloading", "Building", "Installing", "Successfully")
"""How pip's lines begin that are shown as they come."""
_PATH = re.compile(r"^[./~]|\bfile:|^[^:]+\.(whl|zip|tar\.gz)\s*$")
_OPTIONS: tuple[str, ...] = (
    "--index-url",
    "--extra-index-url",
    "--find-links",
    "--no-index",
    "--pre",
    "--prefer-binary",
    "--no-binary",
)
_OPTIONS += ("--only-binary", "--trusted-host", "--use-feature", "--require-hashes", "-i", "-f")


def read(path: Path) -> str:
    """A file of requirements. Exit 2 for one that cannot be read, or that names files of this machine."""
    try:
        if path.stat().st_size > _LONGEST:
            raise Exit(f"{path}: has more than {_LONGEST >> 20} MiB", code=2)
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise Exit(f"requirements {path}: {error.strerror}", code=2) from None
    except ValueError:
        raise Exit(f"requirements {path}: not UTF-8", code=2) from None
    for number, line in enumerate(text.splitlines(), 1):
        if why := _refusal(line.strip()):
            raise Exit(f"{path}:{number}: {line.strip()!r}: {why}", code=2)
    return text if any(line.partition("#")[0].strip() for line in text.splitlines()) else ""


def _refusal(line: str) -> str:
    """Why a line cannot be followed on a node; empty if it can."""
    if line.startswith("-"):
        option = re.split(r"[\s=]", line)[0]
        if option in ("-r", "--requirement", "-c", "--constraint") or line[:2] in ("-r", "-c"):
            return "names a file of this machine: put its lines in its place"
        if option in ("-e", "--editable"):
            return "an editable package is a folder of this machine: let the working directory have it instead"
        if option not in _OPTIONS:
            return f"this option is not allowed here; allowed are {', '.join(_OPTIONS)}"
    elif _PATH.search(line.partition(" #")[0]):
        return "a path of this machine, which nodes do not have: name a version or an address"
    return ""


def folder_of(cluster: SshCluster) -> str:
    """The folder of the environments that all nodes of a cluster share; empty: each has its own."""
    return f"{cluster.shared_dir.rstrip('/')}/.trainyard/envs" if cluster.shared_dir else ""


def ensure(
    fleet: Connections, nodes: Sequence[Node], text: str, folder: str = "", *, from_operator: bool = False
) -> dict[str, str]:
    """Have the environment for these requirements made on these nodes, unless it is there; returns, by node, the folder
    with its `python`. `folder`: see `folder_of`; where it is shared, one node is enough. For nodes that reach no index,
    as those of `local`, this machine downloads the packages: of a text that is not `from_operator`, a file that the
    operator named, only plain requirements. The first node's pip is shown. Exit 1 names the nodes where it failed, with
    pip's last lines."""
    asked = {"text": text, "folder": folder}
    answers, wrong = results_of(lambda node: _ask(fleet, node, asked, None, shown=node == nodes[0]), nodes)
    cut_off: dict[NodePython, list[Node]] = {}
    for node in nodes:
        answer = answers.get(node.name, {})
        if "fits" not in answer:
            continue
        try:
            cut_off.setdefault(read_node_python(answer["fits"]), []).append(node)
        except ValueError as error:
            del answers[node.name]
            wrong[node.name] = f"{node.name}: requirements: what it says of its Python cannot be used: {error}"
    for python, alike in cut_off.items():
        again, more = _bring(fleet, alike, asked, python, from_operator=from_operator)
        answers = {**answers, **again}
        wrong = {**wrong, **more}
    wrong |= {name: f"{name}: {answer['problem']}" for name, answer in answers.items() if "problem" in answer}
    if wrong:
        raise Exit("\n".join(wrong[node.name] for node in nodes if node.name in wrong), code=1)
    return {name: str(answer["bin"]) for name, answer in answers.items()}


def _bring(
    fleet: Connections, nodes: Sequence[Node], asked: dict[str, str], python: NodePython, *, from_operator: bool
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Download the packages for nodes that are alike, and have the environment made of them: the nodes' answers, and
    why others have none."""
    names = ", ".join(node.name for node in nodes)
    say(f"{names}: no package index is reached from there: this machine downloads the packages")
    with tempfile.TemporaryDirectory(prefix="trainyard-") as there:
        found = download_wheels(asked["text"], python, Path(there), from_operator=from_operator)
        size = sum(wheel.stat().st_size for wheel in found)
        say(f"{plural(len(found), 'package')}, {size / 1e6:.1f} MB, for {names}")
        return results_of(lambda node: _ask(fleet, node, asked, found, shown=node == nodes[0]), nodes)


def _ask(
    fleet: Connections, node: Node, asked: dict[str, str], wheels: Sequence[Path] | None, *, shown: bool
) -> dict[str, Any]:
    """The answer of node/requirements.py. SshError if there is none."""

    def on_line(name: str, stream: str, line: str) -> None:
        if stream == "stderr" and shown and line.startswith(_SHOWN):
            say(prefixed(name, line))

    connection = fleet.connection(node)
    for _ in range(2):
        channel = connection.create_session()
        channel.settimeout(_SECONDS)
        channel.exec_command(node_program.command("requirements"))
        # Its input stays open: with the connection ends what runs there.
        with suppress(OSError):  # a node without the program has ended by now, which its exit code says
            channel.sendall(json.dumps({**asked, **_sizes(wheels)}).encode() + b"\n")
            for wheel in wheels or ():
                with wheel.open("rb") as file:
                    while piece := file.read(_PIECE):
                        channel.sendall(piece)
        result = follow(node.name, channel, timeout=_SECONDS, on_line=on_line)
        if result.exited != node_program.MISSING:
            break
        node_program.put(connection)
    if result.exited == TIMED_OUT:
        connection.close()  # which ends pip there
    try:
        answer: dict[str, Any] = json.loads(result.stdout.strip().splitlines()[-1])
        if not isinstance(answer, dict) or not {"bin", "problem"} & answer.keys():
            raise ValueError
    except (ValueError, IndexError, RecursionError):
        raise SshError(result.reason or f"{node.name}: requirements: {result.why}") from None
    return answer


def _sizes(wheels: Sequence[Path] | None) -> dict[str, list[tuple[str, int]]]:
    return {} if wheels is None else {"wheels": [(wheel.name, wheel.stat().st_size) for wheel in wheels]}
