"""A cluster of `count` nodes, node1 the head, for tests that connect to none of them."""

from __future__ import annotations

from typing import Any

from infra.inventory import Node, SshCluster


def cluster(count: int = 3, **settings: Any) -> SshCluster:
    """`settings`: of every node."""
    nodes = [
        Node(name=f"node{i}", private_ip=f"10.0.0.{i}", role="head" if i == 1 else "worker", **settings)
        for i in range(1, count + 1)
    ]
    return SshCluster(name="test", nodes=tuple(nodes))
