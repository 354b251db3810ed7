"""Xeon nodes on AWS; what aws-gpu shares is in aws_nodes."""

from __future__ import annotations

from infra.clusters.aws_nodes import bill, build, check

__all__ = ["bill", "build", "check"]
