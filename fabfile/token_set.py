"""A job's token set on the nodes: what `fab prepare` and `fab data` have in common."""

from __future__ import annotations

import shlex
import sys
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

from invoke.exceptions import Exit

from fabfile.jobs.job_file import resolve
from fabfile.launchers import VENV
from fabfile.output import prefixed, say
from fabfile.ssh import Fleet
from infra.inventory import Node, SshCluster

STDLIB = "stdlib"
"""A source that every machine has: the source code of Python's standard library."""
HELP = {
    "job": "a job's TOML file, or the name of one in training/jobs",
    "set": "section.key=value, over the file; also without --set",
    "overwrite": "replace a token set of another source or vocabulary",
    "stack": "the stack",
    "inventory": "an inventory file instead of a stack",
}


def wanted(job: str, overrides: Sequence[str] | None) -> dict[str, Any]:
    """The job's section `data`; Exit 2 for a job that makes no sense."""
    data: dict[str, Any] = tomllib.loads(resolve(job, overrides or (), 1).text)["data"]
    return data


def run(fleet: Fleet, nodes: Iterable[Node], command: str, *, quiet: bool = False) -> None:
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


def make(fleet: Fleet, folder: str, data: dict[str, Any], *, overwrite: bool) -> None:
    """Make it on the head, from data.source."""
    if not data["source"]:
        raise Exit(
            "data.source is empty: there is nothing to prepare from; name files, folders, globs or hf:NAME", code=2
        )
    run(fleet, [fleet.cluster.head], f"{own(data['path'])}; cd ~; {_program(folder, data, overwrite)}")


def own(path: str) -> str:
    """The folder above the token set, the user's own; it may be at the root, where only root can make one."""
    return f'sudo install -d -o "$(id -un)" -g "$(id -gn)" "$(dirname {shlex.quote(path)})"'


def python(folder: str) -> str:
    return f"PYTHONPATH={folder} PYTHONIOENCODING=utf-8 {VENV}/python -u -m"


def is_shared(path: str, cluster: SshCluster) -> bool:
    """Whether what one node writes there all nodes have."""
    return bool(cluster.shared_dir) and path.startswith(cluster.shared_dir.rstrip("/") + "/")


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
        return f'{python(folder)} training.prepare {shlex.join(options)} "{library}/**/*.py"'
    return f"{python(folder)} training.prepare {shlex.join(options)} {shlex.join(shlex.split(data['source']))}"
