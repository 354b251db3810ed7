"""Fetch tiktoken's published vocabularies on this machine, for nodes without a route to the Internet.

The head says by name which of an encoding's files it lacks and cannot fetch (training.data.vocabulary), and nothing
else: the address, the checksum and the name in tiktoken's cache are not its to choose.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any
from urllib.request import HTTPRedirectHandler, build_opener

from invoke.exceptions import Exit

from fabfile.output import gigabytes, say
from fabfile.remote.deploy import trainer_command
from fabfile.remote.fleet import Connections
from fabfile.remote.send import SendError, send
from fabfile.token_sets.published import FILES, PublishedFile

_SECONDS = 60.0
_LARGEST = 64 << 20
"""Most bytes of a vocabulary file; the largest published one has 3.6 MB."""


class _NoRedirects(HTTPRedirectHandler):
    """Refuses to be sent to another address."""

    def redirect_request(self, *_answer: Any) -> None:
        return None


def bring(fleet: Connections, folder: str, name: str) -> None:
    """Make sure that the head can load the encoding `name`; Exit 1, with what to do instead, if it cannot be fetched.
    `folder` has the package training on the head. An unknown encoding is no error here: its reader reports it."""
    if name not in FILES:
        return
    head = fleet.cluster.head
    result = fleet.run(_vocabulary(folder, "missing", name), nodes=[head], timeout=120)[head.name]
    if not result.ok:
        raise Exit(f"{head.name}: {result.why}", code=1)
    for file in _missing_files(head.name, name, result.stdout):
        content = fetch(file, head.name, name)
        say(f"{head.name} cannot reach {file.url}: fetched here, {gigabytes(len(content) / 2**30)}")
        _put(fleet, content, _vocabulary(folder, "keep", name, file.name, file.sha256), file.name)


def _vocabulary(folder: str, *words: str) -> str:
    """Shell that runs the trainer's program for vocabularies on the head."""
    return f"cd ~; {trainer_command(folder, 'training.data.vocabulary', *words)}"


def _missing_files(head: str, encoding: str, answer: str) -> Sequence[PublishedFile]:
    """The files of the encoding that the head's answer names. Exit 1 for an answer that is no list of their names."""
    known = {file.name: file for file in FILES[encoding]}
    try:
        names = json.loads(answer)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) and name in known for name in names):
        raise Exit(
            f"{head}: encoding {encoding}: its answer names other files than {', '.join(known)}: {answer[:80]!r}",
            code=1,
        )
    return [known[name] for name in dict.fromkeys(names)]


def fetch(file: PublishedFile, head: str, encoding: str) -> bytes:
    """Download a file of an encoding to this machine, from its own address alone. `head` is named in the error. Exit 1
    if it cannot be had, or is not what was published."""
    try:
        with build_opener(_NoRedirects).open(file.url, timeout=_SECONDS) as answer:
            content: bytes = answer.read(_LARGEST + 1)
    except (OSError, HTTPException) as error:  # urllib's errors are OSErrors
        why = getattr(error, "reason", error)
        raise Exit(
            f"encoding {encoding}: neither {head} nor this machine can fetch {file.url} ({why}).\n"
            "Without it: a rank file from elsewhere (fab prepare JOB --ranks FILE.tiktoken), or a vocabulary of the"
            " text's own (--train-vocab 8192)",
            code=1,
        ) from None
    if len(content) > _LARGEST:
        raise Exit(f"{file.url}: more than {gigabytes(_LARGEST / 2**30)}: not a vocabulary", code=1)
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise Exit(f"{file.url}: its SHA-256 is {digest}, and {file.sha256} was published: not sent to {head}", code=1)
    return content


def _put(fleet: Connections, content: bytes, command: str, name: str) -> None:
    """Have the head write a file into its cache, under another name until it is complete. Exit 1 if it cannot."""
    head = fleet.cluster.head
    try:
        send(fleet, head, command, lambda out: out.write(content), seconds=_SECONDS)
    except SendError as error:
        raise Exit(f"{head.name}: the vocabulary's file {name} cannot be written: {error}", code=1) from None
