"""Fetch tiktoken's published vocabularies on this machine, for nodes without a route to the Internet.

The head lists the files that it lacks and cannot fetch (training.data.vocabulary). They are put into tiktoken's own
cache, whose files tiktoken checks by SHA-256 each time it reads them.
"""

from __future__ import annotations

import json
import shlex
from urllib.request import urlopen

from invoke.exceptions import Exit

from fabfile.output import gigabytes, say
from fabfile.remote.deploy import trainer_command
from fabfile.remote.fleet import Connections
from fabfile.remote.send import SendError, send

_SECONDS = 60.0
_LARGEST = 64 << 20
"""Most bytes of a vocabulary file; the largest published one has 3.6 MB."""


def bring(fleet: Connections, folder: str, name: str) -> None:
    """Make sure that the head can load the encoding `name`; Exit 1, with what to do instead, if it cannot be fetched.
    `folder` has the package training on the head. An unknown encoding is no error here: its reader reports it."""
    head = fleet.cluster.head
    program = f"cd ~; {trainer_command(folder, 'training.data.vocabulary', 'missing', name)}"
    result = fleet.run(program, nodes=[head], timeout=120)[head.name]
    if not result.ok:
        raise Exit(f"{head.name}: {result.why}", code=1)
    for url, file in json.loads(result.stdout):
        data = fetch(url, head.name, name)
        say(f"{head.name} cannot reach {url}: fetched here, {gigabytes(len(data) / 2**30)}")
        _put(fleet, data, file)


def fetch(url: str, head: str, name: str) -> bytes:
    """Download a file of the encoding `name` to this machine. `head` is named in the error."""
    try:
        with urlopen(url, timeout=_SECONDS) as answer:
            data: bytes = answer.read(_LARGEST + 1)
    except (OSError, ValueError) as error:  # urllib's errors are OSErrors
        why = getattr(error, "reason", error)
        raise Exit(
            f"encoding {name}: neither {head} nor this machine can fetch {url} ({why}).\n"
            "Without it: a rank file from elsewhere (fab prepare JOB --ranks FILE.tiktoken), or a vocabulary of the"
            " text's own (--train-vocab 8192)",
            code=1,
        ) from None
    if len(data) > _LARGEST:
        raise Exit(f"{url}: more than {gigabytes(_LARGEST / 2**30)}: not a vocabulary", code=1)
    return data


def _put(fleet: Connections, data: bytes, file: str) -> None:
    """Write a file on the head, under another name until it is complete."""
    head, quoted = fleet.cluster.head, shlex.quote(file)
    command = f'mkdir -p "$(dirname {quoted})" && cat > {quoted}.part && mv {quoted}.part {quoted}'
    try:
        send(fleet, head, command, lambda out: out.write(data), seconds=_SECONDS)
    except SendError as error:
        raise Exit(f"{head.name}: {file} cannot be written: {error}", code=1) from None
