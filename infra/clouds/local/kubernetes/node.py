"""What a node of a stack with Kubernetes gets before it boots: its certificates, its network, and its folders."""

from __future__ import annotations

import os

from infra.clouds.local import ids, rootfs
from infra.clouds.local.kubernetes import configuration, folder, images, programs
from infra.clouds.local.nspawn import NspawnMachine
from infra.clouds.naming import node as name_of
from infra.errors import OperationError


def prepare(node: NspawnMachine, address: str) -> list[str]:
    """Write a node's own files into its mounted root. Returns the options of systemd-nspawn for its folders. `address`
    is such as 10.77.0.10/24."""
    index = int(node.name.removeprefix(name_of(0).rstrip("1"))) - 1
    top = folder.path(node.stack)
    for file in sorted((top / "pki" / node.name).iterdir()):
        rootfs.write(node.root, f"{configuration.ETC}/{file.name}".lstrip("/"), file.read_text(), mode=0o600)
    network = configuration.network(index, address.partition("/")[0])
    rootfs.write(node.root, "etc/systemd/network/10-trainyard.network.d/kubernetes.conf", network)
    rootfs.write(node.root, "etc/cni/net.d/10-trainyard.conflist", configuration.container_network(index))
    rootfs.write(node.root, "etc/resolv.conf", "# the nodes reach no name server\n")  # the kubelet wants the file
    if not (programs.are_there() and images.folder().exists()):
        raise OperationError("Kubernetes' programs are not there any more; run: fab up")
    options = [
        f"--bind-ro={programs.folder()}:{configuration.PROGRAMS}",
        f"--bind-ro={images.folder()}:{configuration.IMAGES}",
        f"--bind={top / 'fsx'}:{folder.SHARED}",
    ]
    # Not in the node's root, which is an overlay: containers have overlays themselves, and these cannot be stacked.
    for part in ("containerd", "kubelet"):
        own = node.directory / part
        own.mkdir(exist_ok=True)
        os.chown(own, ids.FIRST, ids.FIRST)
        options.append(f"--bind={own}:/var/lib/{part}")
    if index == 0:
        options.append(f"--bind={top / 'etcd'}:{configuration.STATE}")
    return options
