"""The host keys that the operator's SSH trusts: ~/.trainyard/<cluster name>/known_hosts, written from the inventory.

A node that is made again at the same address has a new key in the inventory, and the file follows: ssh does not
prompt, and the old key is refused.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import get_args

from infra.inventory import InventoryError, Node, SshCluster
from infra.inventory_types import ClusterName, TextForm

_FILES = ("known_hosts", "ssh_config", "kubeconfig")
MANAGED = "managed"
"""The folder beside them with the records of managed jobs."""
LAUNCHED = "launched"
"""The folder beside them with the names of the secrets of launched jobs."""


class SshError(Exception):
    """A node that cannot be used over SSH: one line with its name, its address and the reason."""


class HostKeyError(SshError):
    """The far end's host key does not prove that it is the node; a retry cannot help."""


class HostKeyMismatch(HostKeyError):
    """A node's address offers another host key than the inventory's."""


class HostKeyUnknown(HostKeyError):
    """Neither the inventory nor the operator's known_hosts has a key for this address."""


def directory(name: str) -> Path:
    """The operator's folder of one cluster. InventoryError for a name that cannot be a folder's."""
    form: TextForm = get_args(ClusterName)[1]
    if not form.fits(name):
        raise InventoryError(f"name = {name!r}: must be {form.allowed}")
    return Path.home() / ".trainyard" / name


def host_pattern(host: str, port: int) -> str:
    """A host as a line of known_hosts names it: `node1`, or `[node1]:2222` where sshd has another port than 22."""
    return host if port == 22 else f"[{host}]:{port}"


def known_hosts(cluster: SshCluster) -> Path:
    """The file with the keys of the cluster's nodes, rewritten if the inventory has changed."""
    path = directory(cluster.name) / "known_hosts"
    lines = ["# Written by trainyard from the inventory; changes are overwritten."]
    for node in cluster.nodes:
        if node.host_key:
            address = host_pattern(node.address, node.ssh_port)
            # The name has a line of its own: nodes behind one shared address differ only in [address]:port.
            lines += [f"{address} {node.host_key}", f"{node.name} {node.host_key}"]
    write(path, "\n".join([*lines, ""]))
    return path


def trusted_files(cluster: SshCluster, node: Node) -> list[Path]:
    """The known_hosts files for one node: ours alone if the inventory has its key, else the operator's own."""
    ours = known_hosts(cluster)
    return [ours] if node.host_key else [ours, Path.home() / ".ssh" / "known_hosts"]


def write(path: Path, text: str) -> None:
    """Write a file of the operator's folder atomically, and only if it changes."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_file() and path.read_text() == text:
        return
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(text)
    Path(file.name).replace(path)


def forget(name: str) -> None:
    """Remove the operator's files of a cluster that is gone."""
    folder = directory(name)
    for file in _FILES:
        (folder / file).unlink(missing_ok=True)
    for records in (MANAGED, LAUNCHED):
        shutil.rmtree(folder / records, ignore_errors=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def fingerprint(blob: bytes) -> str:
    """A key as OpenSSH shows it: SHA256:..."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
