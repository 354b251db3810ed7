"""The environment of ranks on nodes with GPUs: what NCCL and EFA have to be told.

Sources: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html and aws-ofi-nccl's documentation.
"""

from __future__ import annotations

from collections.abc import Sequence

from infra.inventory import Node

RDMA = ("sm_80", "sm_90", "sm_100")
"""Architectures whose memory EFA reads and writes itself (p4d and later). On p3dn (sm_70), told to, it fails:
aws/aws-ofi-nccl#104."""


def environment(nodes: Sequence[Node], interface: str) -> dict[str, str]:
    """For the ranks on these nodes; empty if any has no GPU. `interface`: that of the route between the nodes."""
    if not all(node.gpus for node in nodes):
        return {}
    values = {"NCCL_DEBUG": "WARN", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if len(nodes) > 1:
        # For NCCL's own meeting, which is TCP with EFA too. A node whose interface has another name puts in its own.
        values["NCCL_SOCKET_IFNAME"] = interface
    if all(node.efa_cards for node in nodes):
        values["FI_PROVIDER"] = "efa"
        if all(node.gpu_architecture in RDMA for node in nodes):
            values["FI_EFA_USE_DEVICE_RDMA"] = "1"
    return values
