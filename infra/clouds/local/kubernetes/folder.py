"""What a stack's Kubernetes has on this machine, as a Pulumi resource: its programs, and the stack's own folder.

stacks/<stack>/kubernetes/
    pki                what the nodes get before they boot: certificates, keys, kubeconfigs; one folder for each node
    admin.kubeconfig   the operator's own: all rights in the cluster
    etcd               Kubernetes' objects: a head that is replaced goes on with them
    fsx                /fsx of every node: one folder for all jobs
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, UpdateResult

from infra.clouds.dynamic_provider import PlainProvider
from infra.clouds.local import cgroup, ids, image, paths, trees
from infra.clouds.local.kubernetes import configuration, images, pki, programs
from infra.clouds.local.kubernetes.pki import Pair
from infra.clouds.naming import node
from infra.errors import say
from infra.state import operation

NAME = "kubernetes"
"""The resource's name, and the folder's."""
SHARED = "/fsx"
"""Where each node has the shared folder."""
NAMESPACE = "trainyard"
BUILDER = "kubernetes-build"
"""The control group, beside the nodes', in which the programs are built."""
CONTROL_PLANE = {
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "coredns": (configuration.NAME_SERVICE, ""),
}
"""Programs of the head that ask the API -> who they are to it: user, group."""


def path(stack: str) -> Path:
    """The folder of a stack, whether or not it is there."""
    return paths.stack(stack) / NAME


def kubeconfig(stack: str) -> Path:
    """The operator's."""
    return path(stack) / "admin.kubeconfig"


def server(head: str) -> str:
    """The URL of the API of a cluster whose head has this address."""
    return f"https://{head}:{configuration.PORT}"


def remove(stack: str) -> None:
    """Remove the folder with all that the jobs have left in it. A missing one is no error; OperationError if anything
    stays."""
    cgroup.end(stack, NAME)  # a removal that a killed process has begun
    if path(stack).exists():
        kubeconfig(stack).unlink(missing_ok=True)  # first: see is_complete
        trees.empty(path(stack), cgroup.make(stack, NAME))
        cgroup.end(stack, NAME)
        path(stack).rmdir()


def is_complete(stack: str) -> bool:
    """Whether the folder is there whole; without the operator's kubeconfig it is not yet made, or removed in part."""
    return kubeconfig(stack).exists()


def _write(props: dict[str, Any]) -> None:
    """Make the folder complete; what is there of it stays."""
    top, nodes = path(props["stack"]), json.loads(props["nodes"])
    for part in ("fsx", "etcd"):
        if not (top / part).exists():
            (top / part).mkdir(parents=True)
            os.chown(top / part, ids.FIRST, ids.FIRST)
    (top / "etcd").chmod(0o700)
    (top / "fsx").chmod(0o1777)  # as /tmp: every user may write, and remove what is his own
    secret = top / "pki"
    secret.mkdir(mode=0o700, exist_ok=True)
    by = _once(secret / "ca", lambda: pki.authority(f"trainyard {props['stack']}"))
    _write_head(secret / node(0), nodes[node(0)], by)
    for name, address in nodes.items():
        _write_node(secret / name, name, address, server(nodes[node(0)]), by)
    if not kubeconfig(props["stack"]).exists():
        admin = pki.certificate(by, "trainyard", "system:masters")
        _keep(kubeconfig(props["stack"]), pki.kubeconfig(server(nodes[node(0)]), by.certificate, admin, NAMESPACE))
        _keep(top / "admin.pem", admin.certificate + admin.key)


def _write_head(own: Path, address: str, by: Pair) -> None:
    """What the control plane needs."""
    own.mkdir(mode=0o700, exist_ok=True)
    service = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
    names = [address, configuration.API_SERVICE, "127.0.0.1", *service]
    _once(own / "apiserver", lambda: pki.certificate(by, "kube-apiserver", names=names))
    _once(own / "to-kubelets", lambda: pki.certificate(by, "kube-apiserver", "system:masters"))
    if not (own / "sa.pub").exists():
        private, public = pki.signing_key()
        _keep(own / "sa.key", private)
        _keep(own / "sa.pub", public)
    for name, (user, group) in CONTROL_PLANE.items():
        if not (own / f"{name}.kubeconfig").exists():
            pair = pki.certificate(by, user, group)
            _keep(own / f"{name}.kubeconfig", pki.kubeconfig(server(address), by.certificate, pair))


def _write_node(own: Path, name: str, address: str, api: str, by: Pair) -> None:
    """What a kubelet needs."""
    own.mkdir(mode=0o700, exist_ok=True)
    _keep(own / "ca.crt", by.certificate)
    _once(own / "kubelet", lambda: pki.certificate(by, f"system:node:{name}", "system:nodes", [name, address]))
    if not (own / "kubelet.kubeconfig").exists():
        pair = Pair((own / "kubelet.crt").read_text(), (own / "kubelet.key").read_text())
        _keep(own / "kubelet.kubeconfig", pki.kubeconfig(api, by.certificate, pair))
    _keep(own / "node.env", configuration.environment(name, address))


def _once(stem: Path, make: Any) -> Pair:
    """The pair in two files, which is made if it is not there yet."""
    certificate, key = stem.with_name(f"{stem.name}.crt"), stem.with_name(f"{stem.name}.key")
    if not certificate.exists():  # written second
        made: Pair = make()
        _keep(key, made.key)
        _keep(certificate, made.certificate)
    return Pair(certificate.read_text(), key.read_text())


def _keep(file: Path, text: str) -> None:
    """Write a file that only root can read, then rename it into place."""
    temporary = file.with_name(f"{file.name}.tmp")
    temporary.touch(mode=0o600)
    temporary.write_text(text)
    temporary.rename(file)


class KubernetesProvider(PlainProvider):
    """Create builds the programs if this machine does not have them, and completes a folder that a killed `up` left."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Takes minutes where the programs are yet to be built. UsageError without Go or room on the disk,
        OperationError if the build fails."""
        paths.close()
        with operation.lock(paths.stack(props["stack"])):
            cgroup.end(props["stack"], NAME)  # a removal that a killed process has begun
            _make(props["stack"])
            _write(props)
        return CreateResult(id_=f"{props['stack']}-{NAME}", outs=props)

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        """Another stack replaces the folder; other nodes or programs complete it in place, and certificates stay."""
        replaces = ["stack"] if olds["stack"] != news["stack"] else []
        changed = olds["nodes"] != news["nodes"] or olds["programs"] != news["programs"]
        return DiffResult(changes=bool(replaces or changed), replaces=replaces, delete_before_replace=True)

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        """Dropped from the state once the operator's kubeconfig is gone: the next `up` completes the folder."""
        there = is_complete(props["stack"])
        return ReadResult(id_=id_ if there else "", outs=props if there else {})

    def update(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        """Build new versions if there are some, and make what new nodes need. Errors as in `create`."""
        with operation.lock(paths.stack(news["stack"])):
            _make(news["stack"])
            _write(news)
        return UpdateResult(outs={**olds, **news})

    def delete(self, id_: str, props: dict[str, Any]) -> None:
        """Remove the folder, with the jobs' files in it; the programs stay for the next stack."""
        with operation.lock(paths.stack(props["stack"])):
            remove(props["stack"])
        paths.tidy(props["stack"])


def _make(stack: str) -> None:
    """Make programs and images, unless they are there. One stack at a time: a second one waits, and then has them.

    `fab prune` takes the same lock, and leaves the programs alone once the stack's folder is there.
    """
    watch = operation.CancellationWatch()
    with image.one_at_a_time(paths.kubernetes(), "kubernetes: another stack is building", watch):
        if not (programs.are_there() and images.folder().exists()):
            try:
                programs.build(cgroup.make(stack, BUILDER), say, watch.check)
            finally:
                cgroup.end(stack, BUILDER)
            images.make()
        path(stack).mkdir(parents=True, exist_ok=True)


class Kubernetes(Resource, module="local", name="Kubernetes"):
    """A stack's certificates and folders, and the programs of its nodes. The nodes need it before they boot."""

    def __init__(self, *, stack: str, nodes: dict[str, str], opts: pulumi.ResourceOptions) -> None:
        """`nodes`: name -> address, the head first."""
        inputs = {"stack": stack, "nodes": json.dumps(nodes), "programs": f"{programs.key()} {images.folder().name}"}
        super().__init__(KubernetesProvider(), NAME, inputs, opts)
