"""Make a job's token set on the nodes: the common part of `fab prepare` and `fab data`."""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

from invoke.exceptions import Exit

from fabfile.job_file import resolve
from fabfile.launchers import VENV
from fabfile.output import hint, prefixed, say
from fabfile.remote.deploy import trainer_command
from fabfile.remote.fleet import Connections
from fabfile.remote.openssh import MEET, STRANGER
from fabfile.token_sets import encodings, sources
from infra.inventory import Node, SshCluster

RANKS = (".tiktoken", "tokenizer.json")
"""How the names of vocabularies' files end: a rank file is tiktoken's format, a tokenizer.json Llama's."""
STDLIB = "stdlib"
"""The name of a source that every machine has: the source code of Python's standard library."""
_LONGEST = 7 * 86400.0
"""Limit of one step, in seconds: tokenising or copying terabytes takes days."""
_RSYNC = "-a --delete --partial --timeout=120"  # seconds without a byte
HELP = {
    "job": "a job's TOML file, or the name of one in training/jobs",
    "set": "section.key=value, over the file; also without --set",
    "text-key": "the column or key of the text in jsonl, parquet and hf: sources; the same as data.text_key=KEY",
    "invalid": "what to do with text that is not UTF-8: stop, skip or replace; the same as data.invalid=...",
    "train-vocab": "train a vocabulary of so many tokens on the text; the same as data.train_vocab=N",
    "ranks": "a .tiktoken rank file or a tokenizer.json, here or on the head; the same as data.encoding=FILE",
    "yes": "do not ask before much text is sent to the head",
    "overwrite": "replace a token set of another source or vocabulary",
    "stack": "the stack",
    "inventory": "an inventory file instead of a stack",
}


def wanted(job: str, overrides: Sequence[str] | None, **options: str | int) -> dict[str, Any]:
    """The job's section `data`; Exit 2 for an invalid job. `options` are keys of that section that the verb's options
    set; 0 or empty: not set."""
    words = [*(overrides or ()), *(f"data.{key}={json.dumps(value)}" for key, value in options.items() if value)]
    data: dict[str, Any] = tomllib.loads(resolve(job, words, 1).text)["data"]
    return data


def train_command(job: str, overrides: Sequence[str] | None) -> str:
    """The `fab train JOB` command for this token set; overrides of its path and of how it is read are repeated."""
    words = list(overrides or ())
    streams = any(word.startswith("data.stream=") for word in words)
    keys = ("data.path=", "data.stream=", *(["data.source="] if streams else []))
    return shlex.join(["fab", "train", job, *(word for word in words if word.startswith(keys))])


def run(fleet: Connections, nodes: Iterable[Node], command: str, *, quiet: bool = False) -> None:
    """Run a step on these nodes and print its lines as they come. Exit names the nodes where it failed."""

    def show(node: str, stream: str, line: str) -> None:
        if not quiet or stream == "stderr":
            say(prefixed(node, line, file=sys.stderr if stream == "stderr" else sys.stdout))

    bad = [one for one in fleet.run(command, nodes=nodes, timeout=_LONGEST, on_line=show).values() if not one.ok]
    for result in bad:
        say(f"{result.node}: {result.why}", file=sys.stderr)
    if any(STRANGER in result.stderr for result in bad):
        say(hint(MEET), file=sys.stderr)
    if bad:
        raise Exit(code=2 if all(result.exited == 2 for result in bad) else 1)


def make(fleet: Connections, folder: str, data: dict[str, Any], *, overwrite: bool, yes: bool) -> None:
    """Make the token set on the head, from data.source. Text on this machine is sent there first."""
    words = text(fleet, data, yes=yes)
    vocabulary = data["encoding"]
    if not data["train_vocab"] and vocabulary.endswith(RANKS):
        (data["encoding"],) = sources.brought(fleet, [vocabulary], yes=True)
    elif not data["train_vocab"]:
        encodings.bring(fleet, folder, vocabulary)
    run(fleet, [fleet.cluster.head], f"{own(data['path'])}; cd ~; {_program(folder, data, words, overwrite)}")


def store_text(fleet: Connections, folder: str, data: dict[str, Any], url: str, *, yes: bool) -> None:
    """Copy the token set's source text from the head to the bucket, into URL/raw. `url` is quoted for a shell."""
    reading = _reading(data, text(fleet, data, yes=yes))
    argv = f"{python(folder)} training.store.raw_text {url}/raw --tokens {url} {reading}"
    run(fleet, [fleet.cluster.head], f"cd ~; {argv}")


def text(fleet: Connections, data: dict[str, Any], *, yes: bool) -> list[str]:
    """The words of data.source as paths that the head can read. Text on this machine is sent there first."""
    if not data["source"]:
        why = "there is nothing to prepare from; name files, folders, globs or hf:NAME"
        raise Exit(f"data.source is empty: {why}", code=2)
    try:
        words = shlex.split(data["source"])
    except ValueError as error:
        raise Exit(f"data.source = {data['source']!r}: {error}", code=2) from None
    if data["source"] == STDLIB or (data["stream"] and all("://" in word for word in words)):
        return words
    return sources.brought(fleet, words, yes=yes)


def own(path: str) -> str:
    """Shell that makes the folder above the token set, so that the user can write there; by sudo where that is needed,
    as it may be at the root."""
    made = 'mkdir -p "$d" 2>/dev/null && [ -w "$d" ]'
    return f'd=$(dirname {shlex.quote(path)}); {made} || sudo install -d -o "$(id -un)" -g "$(id -gn)" "$d"'


def copies(path: str, nodes: Sequence[Node]) -> str:
    """Shell that copies a folder from one node to others at once, over the cluster's network; it fails if one fails."""
    quoted = shlex.quote(path.rstrip("/") + "/")
    one = [
        f"(rsync {_RSYNC} {quoted} {node.name}:{quoted} && echo copied to {node.name}) & p{n}=$!"
        for n, node in enumerate(nodes)
    ]
    waits = [f"wait $p{n} || bad=1" for n in range(len(nodes))]
    return "\n".join(["bad=0", *one, *waits, "exit $bad"])


def python(folder: str) -> str:
    """The beginning of a shell command that runs a module of the package in `folder` on a node."""
    return f"PYTHONIOENCODING=utf-8 {trainer_command(folder)}"


def is_shared(path: str, shared_dir: str) -> bool:
    """Whether the path is in the folder that all nodes share."""
    return bool(shared_dir) and path.startswith(shared_dir.rstrip("/") + "/")


def check_place(path: str, folders: Sequence[str], who: str) -> None:
    """Exit 2 for a token set whose path is not below one of the folders that `who` shares. A path within the user's
    home may be anywhere."""
    if path.startswith("/") and not any(is_shared(path, folder) for folder in folders):
        raise Exit(f"data.path = {path}: must be below {' or '.join(filter(None, folders))}, which {who}", code=2)


def check_queue(cluster: SshCluster, path: str) -> None:
    """Exit 2 for a token set on the head's own disk, where the machines that a queue starts for jobs do not have it."""
    if cluster.queue:
        check_place(path, [cluster.shared_dir], f"the head shares with the machines of {cluster.queue.name}")


def _program(folder: str, data: dict[str, Any], words: Sequence[str], overwrite: bool) -> str:
    """The command line on the head that makes the token set, or, of a text that is streamed, what belongs to it;
    `words` are the sources as the head can read them."""
    module = "training.data.stream.stage" if data["stream"] else "training.data.prepare"
    options = ["--out", data["path"], *(["--overwrite"] if overwrite else [])]
    if data["train_vocab"]:
        options += ["--train-vocab", str(data["train_vocab"])]
    else:
        options += ["--ranks" if data["encoding"].endswith(RANKS) else "--encoding", data["encoding"]]
    # The documents of the standard library are large, so hold out a larger share.
    options += ["--val-fraction", "0.05" if data["source"] == STDLIB else str(data["val_fraction"])]
    return f"{python(folder)} {module} {shlex.join(options)} {_reading(data, words)}"


def _reading(data: dict[str, Any], words: Sequence[str]) -> str:
    """The options and words, for a shell, with which the text is read. `words` are the sources as the head can read
    them; in their place, the path of the standard library on a node, a few files of which are not UTF-8."""
    lines = "--lines " if data["documents"] == "lines" else ""
    if data["source"] == STDLIB:
        stdlib = f"$({VENV}/python -c 'import sysconfig; print(sysconfig.get_path(\"stdlib\"))')"
        return f'--text-key text --invalid skip {lines}"{stdlib}/**/*.py"'
    return lines + shlex.join(["--text-key", data["text_key"], "--invalid", data["invalid"], *words])
