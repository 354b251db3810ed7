"""Options for the ssh command that make it as strict as our own connections."""

from __future__ import annotations

import shlex
from pathlib import Path

from fabfile.remote.known_hosts import directory, known_hosts, trusted_files, write
from infra.inventory import InventoryError, Node, SshCluster
from infra.inventory_types import split_jump_host

STRANGER = "Host key verification failed"  # what ssh prints on a node that lacks the new host key of another
MEET = "a node was made again, and the others do not know its key yet; run: fab wait"
CONFIG = "ssh_config"  # the file that `fab ssh-config` writes in the operator's folder of the cluster


def settings(cluster: SshCluster, node: Node) -> list[tuple[str, str]]:
    """OpenSSH's settings for a node: (keyword, value), quoted as in a configuration file."""
    pairs = [
        ("User", user_of(cluster, node)),
        ("Port", str(node.ssh_port)),
        ("StrictHostKeyChecking", "yes"),
        ("UserKnownHostsFile", " ".join(quoted(file) for file in trusted_files(cluster, node))),
        ("GlobalKnownHostsFile", "/dev/null"),
        ("UpdateHostKeys", "no"),
        ("CheckHostIP", "no"),
        ("PreferredAuthentications", "publickey"),
        ("PasswordAuthentication", "no"),
        ("KbdInteractiveAuthentication", "no"),
        ("ForwardAgent", "no"),
        ("ConnectTimeout", "10"),
        ("ServerAliveInterval", "15"),
        ("ServerAliveCountMax", "4"),
    ]
    if cluster.identity_file:
        pairs += [("IdentityFile", quoted(Path(cluster.identity_file).expanduser())), ("IdentitiesOnly", "yes")]
    jump = jump_node(cluster)
    if jump is not None and node != jump:
        # Not ProxyJump: its ssh would read the jump host's settings from the operator's own configuration.
        hop = shlex.join(["ssh", *options(cluster, jump)]).replace("%", "%%")
        pairs.append(("ProxyCommand", f"{hop} -W '[%h]:%p' {shlex.quote(jump.address)}"))
    return pairs


def options(cluster: SshCluster, node: Node) -> list[str]:
    """Options for OpenSSH: `["ssh", *options(cluster, node), node.address, command]`."""
    # Not the operator's own ssh_config, which could weaken any of this.
    return ["-F", "none", *(word for key, value in settings(cluster, node) for word in ("-o", f"{key}={value}"))]


def config_text(cluster: SshCluster) -> str:
    """An ssh_config with a block per node, by its name and by name.cluster, and one for the jump host."""
    hosts = [(node, f"{node.name} {node.name}.{cluster.name}") for node in cluster.nodes]
    jump = jump_node(cluster)
    if jump is not None and jump not in cluster.nodes:
        hosts.append((jump, f"jump.{cluster.name}"))
    blocks = ["# Written by trainyard from the inventory; changes are overwritten."]
    for node, names in hosts:
        lines = [f"Host {names}", f"    HostName {node.address}"]
        blocks.append("\n".join([*lines, *(f"    {key} {value}" for key, value in settings(cluster, node))]))
    return "\n\n".join(blocks) + "\n"


def renew(cluster: SshCluster) -> None:
    """Rewrite the operator's files of a cluster, if they exist: the inventory may have changed."""
    folder = directory(cluster.name)
    if (folder / "known_hosts").exists():
        known_hosts(cluster)
    if (folder / CONFIG).exists():
        write(folder / CONFIG, config_text(cluster))


def jump_node(cluster: SshCluster) -> Node | None:
    """The jump host `[user@]host[:port]` as a node: the cluster's node at that address, if there is one. Otherwise
    its host key must be in the operator's known_hosts. None: no jump host."""
    if not cluster.jump_host:
        return None
    _, host, port = _split(cluster)
    for node in cluster.nodes:
        if (node.address, node.ssh_port) == (host, port):
            return node
    return Node(name="jump", private_ip=host, ssh_port=port)


def user_of(cluster: SshCluster, node: Node) -> str:
    """The user who logs in: the jump host's own where it names one, else the cluster's."""
    user = _split(cluster)[0] if node == jump_node(cluster) else ""
    return user or cluster.ssh_user


def _split(cluster: SshCluster) -> tuple[str, str, int]:
    parts = split_jump_host(cluster.jump_host)
    if parts is None:  # from_json refuses it, so only a cluster made in code gets here
        raise InventoryError(f"jump_host = {cluster.jump_host!r}: must be [user@]host[:port]")
    return parts


def quoted(path: Path) -> str:
    """A path quoted for ssh_config: with spaces kept and `%` escaped, which would start a token."""
    return '"' + str(path).replace("%", "%%").replace('"', '\\"') + '"'
