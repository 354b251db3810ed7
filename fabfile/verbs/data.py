"""`fab prepare` and `fab data`: bring a job's token set to every node, `data` by way of the cluster's bucket.

The set is made once, on the head, unless it exists: in a folder here, or in the bucket, from an earlier cluster. Its
path in the bucket is its path on the nodes: /data/owt is BUCKET/data/owt.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import backends
from fabfile.backends.kubernetes import pods
from fabfile.output import next_command, say
from fabfile.remote.deploy import deploy
from fabfile.remote.fleet import Connections
from fabfile.targets import load_any
from fabfile.token_sets import token_set
from fabfile.token_sets.upload import prepared, upload
from infra.inventory import Cluster, KubeCluster

_LIST = 300.0  # seconds for a listing of the bucket


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
    data = token_set.wanted(job, set_, text_key=text_key, invalid=invalid, train_vocab=train_vocab, encoding=ranks)
    there = load_any(stack, inventory)
    _check_place(there, data["path"])
    with backends.nodes_of(there) as fleet:
        cluster = fleet.cluster
        head, others = cluster.nodes[0], cluster.nodes[1:]
        folder = deploy(fleet, cluster.nodes)[head.name].folder
        token_set.make(fleet, folder, data, overwrite=overwrite, yes=yes)
        if others and not token_set.is_shared(data["path"], cluster.shared_dir):
            token_set.run(fleet, others, token_set.own(data["path"]))
            token_set.run(fleet, [head], token_set.copies(data["path"], others))
        verify = f"cd ~; {token_set.python(folder)} training.data.token_set {shlex.quote(data['path'])}"
        token_set.run(fleet, cluster.nodes, verify, quiet=True)
    say(f"{data['path']} is complete on {_where(there)}, checksums verified")
    say(next_command(token_set.train_command(job, set_)))


@task(
    iterable=["set_"],
    help={
        **token_set.HELP,
        "from": "a prepared token set on this machine; nanoGPT's files, too",
        "raw": "keep the text that it was made from beside it in the bucket, too, as gzipped JSON lines",
    },
)
def data(
    _c: Context,
    job: str,
    set_: Sequence[str] | None = None,
    from_: str = "",
    text_key: str = "",
    invalid: str = "",
    train_vocab: int = 0,
    ranks: str = "",
    overwrite: bool = False,
    raw: bool = False,
    yes: bool = False,
    stack: str = "",
    inventory: str = "",
) -> None:
    """Put a job's token set into the cluster's bucket, made where it is not there yet, and bring it to every node."""
    wanted = token_set.wanted(job, set_, text_key=text_key, invalid=invalid, train_vocab=train_vocab, encoding=ranks)
    there = load_any(stack, inventory)
    if not there.data_url:
        without = f"next: fab prepare {shlex.quote(job)}"
        raise Exit(f"{there.name} has no bucket (its data_url is empty): prepare needs none\n{without}", code=2)
    files = prepared(Path(from_).expanduser()) if from_ else []
    if raw and wanted["stream"]:
        raise Exit(f"--raw: data.source = {wanted['source']} is read where it is, by the training itself", code=2)
    path, url = wanted["path"], address(there.data_url, wanted["path"])
    _check_place(there, path)
    with backends.nodes_of(there) as fleet:
        cluster = fleet.cluster
        folder = deploy(fleet, cluster.nodes)[cluster.head.name].folder
        store = f"{token_set.python(folder)} training.store"
        if files or overwrite or not is_complete(fleet, store, url):
            if files:
                upload(fleet, files, path)
            else:
                token_set.make(fleet, folder, wanted, overwrite=overwrite, yes=yes)
            again = " --overwrite" if overwrite else ""
            token_set.run(fleet, [cluster.head], f"cd ~; {store} push {url} {shlex.quote(path)}{again}")
        if raw and not is_complete(fleet, store, f"{url}/raw"):
            token_set.store_text(fleet, folder, wanted, url, yes=yes)
        nodes = cluster.nodes[:1] if token_set.is_shared(path, cluster.shared_dir) else cluster.nodes
        token_set.run(fleet, nodes, f"{token_set.own(path)}; cd ~; {store} pull {url} {shlex.quote(path)}")
    say(f"{path} is complete on {_where(there)}, checksums verified; kept in {url}")
    say(next_command(token_set.train_command(job, set_)))


def _check_place(cluster: Cluster, path: str) -> None:
    """Exit 2 for a token set in a folder that not all of a job's pods or machines see."""
    if isinstance(cluster, KubeCluster):
        token_set.check_place(path, (cluster.shared_dir, pods.DATA), "all pods share")
    else:
        token_set.check_queue(cluster, path)


def _where(cluster: Cluster) -> str:
    """For a message: where a token set is then."""
    return "the shared volume" if isinstance(cluster, KubeCluster) else f"{len(cluster.nodes)} nodes"


def address(data_url: str, path: str) -> str:
    """A token set's folder in the bucket, quoted for a shell."""
    return shlex.quote(f"{data_url.rstrip('/')}/{path.removeprefix('~').strip('/')}")


def is_complete(fleet: Connections, store: str, url: str) -> bool:
    """Whether the bucket has a complete set at `url`, asked from the head; Exit if that fails."""
    head = fleet.cluster.head
    result = fleet.run(f"cd ~; {store} list {url}", nodes=[head], timeout=_LIST)[head.name]
    if not result.ok:
        say(f"{head.name}: {result.why}", file=sys.stderr)
        raise Exit(code=2 if result.exited == 2 else 1)
    there = ".\twhole" in result.stdout.splitlines()
    say(f"{url} {'is there already' if there else 'is not there yet'}")
    return there
