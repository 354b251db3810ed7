"""GPU nodes on AWS: aws_nodes' network, image, nodes and money, with the types that have GPUs.

What follows from the type (infra.clouds.aws.machine_types): a rank for each GPU, EFA on every network card, the group's
rules for EFA, the limit that the vCPUs count in, and which torch the image has.
"""

from __future__ import annotations

from infra.clusters.aws_nodes import bill, build, check

__all__ = ["bill", "build", "check"]
