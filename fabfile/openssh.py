"""What the ssh command has to be told, so that it is as strict as our own connections."""

from __future__ import annotations

import shlex
from pathlib import Path

from fabfile.known_hosts import trusted_files
from infra.inventory import Node, SshCluster


def settings(cluster: SshCluster, node: Node) -> list[tuple[str, str]]:
    """What OpenSSH has to be told about a node: keyword and value, quoted as in a configuration file."""
    identity = cluster.identity_file
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
    ]
    if identity:
        pairs += [("IdentityFile", quoted(Path(identity).expanduser())), ("IdentitiesOnly", "yes")]
    jump = jump_node(cluster)
    if jump is not None and node != jump:
        # Not ProxyJump: its ssh would take the jump host's settings from the operator's own configuration.
        hop = shlex.join(["ssh", *options(cluster, jump), "-W", "TARGET", jump.address])
        pairs.append(("ProxyCommand", hop.replace("%", "%%").replace("TARGET", "'[%h]:%p'")))
    return pairs


def options(cluster: SshCluster, node: Node) -> list[str]:
    """Options for OpenSSH: `["ssh", *options(cluster, node), node.address, command]`."""
    argv = ["-F", "none"]  # not the operator's own ssh_config, which could weaken any of this
    for key, value in settings(cluster, node):
        argv += ["-o", f"{key}={value}"]
    return argv


def jump_node(cluster: SshCluster) -> Node | None:
    """The jump host `[user@]host[:port]` as a node; its key is that of a node at its address or the operator's own."""
    if not cluster.jump_host:
        return None
    target = cluster.jump_host.rpartition("@")[2]
    host, colon, port = target.rpartition(":")
    if not colon or not port.isdigit() or (":" in host and not host.startswith("[")):
        host, port = target, "22"
    host = host.strip("[]")
    for node in cluster.nodes:
        if (node.address, node.ssh_port) == (host, int(port)):
            return node
    return Node(name="jump", private_ip=host, ssh_port=int(port))


def user_of(cluster: SshCluster, node: Node) -> str:
    """Who logs in: the cluster's user, but for a jump host that names its own."""
    user = cluster.jump_host.rpartition("@")[0] if node == jump_node(cluster) else ""
    return user or cluster.ssh_user


def quoted(path: Path) -> str:
    """A path as ssh_config reads it: spaces kept, `%` not taken for one of its tokens."""
    return '"' + str(path).replace("%", "%%").replace('"', '\\"') + '"'
