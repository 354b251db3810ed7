"""`fab prepare`: a job's token set, made once on the head and brought to every node."""

from __future__ import annotations

import shlex
import sys
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile.deploy import deploy
from fabfile.jobs.job_file import resolve
from fabfile.launchers import VENV
from fabfile.output import interruptible, next_command, prefixed, say
from fabfile.ssh import Fleet
from fabfile.targets import load
from infra.inventory import Node

STDLIB = "stdlib"
"""A source that every machine has: the source code of Python's standard library."""


@task(
    iterable=["set_"],
    help={
        "job": "a job's TOML file, or the name of one in training/jobs",
        "set": "section.key=value, over the file; also without --set",
        "overwrite": "replace a token set of another source or vocabulary",
        "stack": "the stack",
        "inventory": "an inventory file instead of a stack",
    },
)
def prepare(
    _c: Context,
    job: str,
    set_: Sequence[str] | None = None,
    overwrite: bool = False,
    stack: str = "",
    inventory: str = "",
) -> None:
    """Make a job's token set from its data.source, on the head, and bring it to every node."""
    cluster = load(stack, inventory)
    data = tomllib.loads(resolve(job, set_ or (), 1).text)["data"]
    if not data["source"]:
        raise Exit(
            "data.source is empty: there is nothing to prepare from; name files, folders, globs or hf:NAME", code=2
        )
    head, others = cluster.nodes[0], cluster.nodes[1:]
    with interruptible(), Fleet(cluster) as fleet:
        folder = deploy(fleet, cluster.nodes)[head.name].folder
        _run(fleet, [head], f"{_own(data['path'])}; cd ~; {_program(folder, data, overwrite)}")
        if others and not _is_shared(data["path"], cluster.shared_dir):
            _run(fleet, others, _own(data["path"]))
            _run(fleet, [head], _copies(data["path"], others))
        _run(fleet, cluster.nodes, f"{_python(folder)} training.tokens {shlex.quote(data['path'])}", quiet=True)
    say(f"{data['path']} is whole on {len(cluster.nodes)} nodes, checksums verified")
    say(next_command(f"fab train {shlex.quote(job)}"))


def _run(fleet: Fleet, nodes: Iterable[Node], command: str, *, quiet: bool = False) -> None:
    """Run a step on some nodes, its lines as they come; Exit names the nodes where it failed."""

    def show(node: str, stream: str, line: str) -> None:
        if not quiet or stream == "stderr":
            say(prefixed(node, line, file=sys.stderr if stream == "stderr" else sys.stdout))

    results = fleet.run(command, nodes=nodes, on_line=show)
    bad = [result for result in results.values() if not result.ok]
    for result in bad:
        say(f"{result.node}: {result.why}", file=sys.stderr)
    if bad:
        raise Exit(code=2 if all(result.exited == 2 for result in bad) else 1)


def _own(path: str) -> str:
    """The folder above the token set, the user's own; it may be at the root, where only root can make one."""
    return f'sudo install -d -o "$(id -un)" -g "$(id -gn)" "$(dirname {shlex.quote(path)})"'


def _python(folder: str) -> str:
    return f"PYTHONPATH={folder} PYTHONIOENCODING=utf-8 {VENV}/python -u -m"


def _program(folder: str, data: dict[str, Any], overwrite: bool) -> str:
    options = ["--out", data["path"], *(["--overwrite"] if overwrite else [])]
    if data["train_vocab"]:
        options += ["--train-vocab", str(data["train_vocab"])]
    elif data["encoding"].endswith(".tiktoken"):
        options += ["--ranks", data["encoding"]]
    else:
        options += ["--encoding", data["encoding"]]
    if data["source"] == STDLIB:
        # A few of its files are not UTF-8 on purpose. Whole files are documents, so a larger share is held out.
        library = f"$({VENV}/python -c 'import sysconfig; print(sysconfig.get_path(\"stdlib\"))')"
        options += ["--invalid", "skip", "--val-fraction", "0.05"]
        return f'{_python(folder)} training.prepare {shlex.join(options)} "{library}/**/*.py"'
    return f"{_python(folder)} training.prepare {shlex.join(options)} {shlex.join(shlex.split(data['source']))}"


def _copies(path: str, nodes: Sequence[Node]) -> str:
    """From the head to the others over the cluster's own network, all at once; one that fails fails the step."""
    quoted = shlex.quote(path.rstrip("/") + "/")
    one = [
        f"(rsync -a --delete --partial {quoted} {node.name}:{quoted} && echo copied to {node.name}) & p{n}=$!"
        for n, node in enumerate(nodes)
    ]
    waits = [f"wait $p{n} || bad=1" for n in range(len(nodes))]
    return "\n".join(["bad=0", *one, *waits, "exit $bad"])


def _is_shared(path: str, shared_dir: str) -> bool:
    return bool(shared_dir) and path.startswith(shared_dir.rstrip("/") + "/")
