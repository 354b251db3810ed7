"""Hypothesis strategies for every field of an inventory, and for whole clusters."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from infra.inventory import KubeCluster, Node, Queue, SshCluster
from infra.inventory_types import (
    Address,
    Bucket,
    CertificateData,
    ClusterName,
    Endpoint,
    GpuArchitecture,
    HostKey,
    HostName,
    HostOrAddress,
    Image,
    Interface,
    JumpHost,
    LocalPath,
    SharedPath,
    SharedPaths,
    Span,
    UserName,
)

NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)


def word(extra: str, most: int = 8) -> st.SearchStrategy[str]:
    """A letter or digit, then these characters as well."""
    plain = "abzAZ09"
    return st.builds("{}{}".format, st.sampled_from(plain), st.text(plain + extra, max_size=most))


SIX = st.ip_addresses(v=6).map(str)
HOSTS = st.lists(NAMES, min_size=1, max_size=3).map(lambda parts: "h" + ".".join(parts))  # a number is an address
PORTS = st.just("") | st.integers(1, 65535).map(":{}".format)
USERS = word("._@+-")
FOLDERS = st.lists(word("._@=+-"), max_size=3).map(lambda parts: "".join(f"/{part}" for part in parts))
VALUES: dict[Any, st.SearchStrategy[str]] = {
    Address: st.ip_addresses().map(str),
    Bucket: st.builds("{}{}".format, st.sampled_from(["s3://b-1.x", "abfs://data@acct.dfs.core.windows.net"]), FOLDERS),
    ClusterName: word("._-"),
    CertificateData: word("+/", 30).map("LS0t{}==".format),
    Endpoint: st.builds("https://{}{}".format, HOSTS | SIX.map("[{}]".format), PORTS),
    GpuArchitecture: st.sampled_from(["sm_70", "sm_80", "sm_100", "sm_90a"]),
    HostKey: word("", 30).map("ssh-ed25519 {}==".format),
    HostName: NAMES,
    HostOrAddress: HOSTS | st.ip_addresses().map(str),
    Image: word("._/:@-"),
    Interface: word("_.:-"),
    JumpHost: st.builds("{}{}{}".format, st.just("") | USERS.map("{}@".format), HOSTS | SIX.map("[{}]".format), PORTS)
    | SIX,
    LocalPath: st.text("ab ._%~#'ü()&;|*?=,-<>!{}[]@:", min_size=1, max_size=12).map("/k{}".format),
    SharedPath: FOLDERS.filter(bool),
    SharedPaths: st.lists(FOLDERS.filter(bool), min_size=1, max_size=3).map(",".join),
    UserName: USERS,
}
"""Texts of every form. There is none for a form that is new: add it."""


def values(hint: Any, default: object) -> st.SearchStrategy[Any]:
    """What a field may have."""
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    kind, rule = get_args(hint)
    if isinstance(rule, Span):
        return st.floats(rule.least, rule.most) if kind is float else st.integers(rule.least, rule.most)
    return st.just("") | VALUES[hint] if default == "" else VALUES[hint]


def fields_of(cls: type) -> dict[str, st.SearchStrategy[Any]]:
    hints = get_type_hints(cls, include_extras=True)
    fields = [field for field in dataclasses.fields(cls) if field.name not in ("role", "queue")]
    fields = [field for field in fields if field.name != "nodes" or cls is Queue]
    return {field.name: values(hints[field.name], field.default) for field in fields}


@st.composite
def ssh_clusters(draw: st.DrawFn) -> SshCluster:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    addresses = draw(st.lists(st.ip_addresses().map(str), min_size=len(names), max_size=len(names), unique=True))
    nodes = tuple(
        dataclasses.replace(
            draw(st.builds(Node, **fields_of(Node))),
            name=name,
            private_ip=address,
            role="head" if index == 0 else "worker",
        )
        for index, (name, address) in enumerate(zip(names, addresses, strict=True))
    )
    queues = st.none() | st.builds(Queue, **fields_of(Queue))
    return draw(st.builds(SshCluster, **fields_of(SshCluster), nodes=st.just(nodes), queue=queues))


KUBE_CLUSTERS = st.builds(KubeCluster, **fields_of(KubeCluster))
