"""`fab prepare`: a job's token set, made once on the head and brought to every node."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from invoke.context import Context
from invoke.tasks import task

from fabfile.output import next_command, say
from fabfile.remote.deploy import deploy
from fabfile.remote.fleet import Fleet
from fabfile.targets import load
from fabfile.token_sets import token_set
from infra.inventory import Node

_RSYNC = "-a --delete --partial --timeout=120"  # seconds without a byte


@task(iterable=["set_"], help=token_set.HELP)
def prepare(
    _c: Context,
    job: str,
    set_: Sequence[str] | None = None,
    text_key: str = "",
    invalid: str = "",
    train_vocab: int = 0,
    ranks: str = "",
    overwrite: bool = False,
    yes: bool = False,
    stack: str = "",
    inventory: str = "",
) -> None:
    """Make a job's token set from its data.source, on the head, and bring it to every node."""
    cluster = load(stack, inventory)
    data = token_set.wanted(job, set_, text_key=text_key, invalid=invalid, train_vocab=train_vocab, encoding=ranks)
    head, others = cluster.nodes[0], cluster.nodes[1:]
    with Fleet(cluster) as fleet:
        folder = deploy(fleet, cluster.nodes)[head.name].folder
        token_set.make(fleet, folder, data, overwrite=overwrite, yes=yes)
        if others and not token_set.is_shared(data["path"], cluster.shared_dir):
            token_set.run(fleet, others, token_set.own(data["path"]))
            token_set.run(fleet, [head], _copies(data["path"], others))
        verify = f"cd ~; {token_set.python(folder)} training.data.token_set {shlex.quote(data['path'])}"
        token_set.run(fleet, cluster.nodes, verify, quiet=True)
    say(f"{data['path']} is whole on {len(cluster.nodes)} nodes, checksums verified")
    say(next_command(token_set.train_command(job, set_)))


def _copies(path: str, nodes: Sequence[Node]) -> str:
    """Shell that copies from the head to all other nodes at once, over the cluster's network; it fails if one fails."""
    quoted = shlex.quote(path.rstrip("/") + "/")
    one = [
        f"(rsync {_RSYNC} {quoted} {node.name}:{quoted} && echo copied to {node.name}) & p{n}=$!"
        for n, node in enumerate(nodes)
    ]
    waits = [f"wait $p{n} || bad=1" for n in range(len(nodes))]
    return "\n".join(["bad=0", *one, *waits, "exit $bad"])
