"""The image of nodes with Kubernetes: a layer over the image of a profile."""

from __future__ import annotations

from pathlib import Path

from infra.clouds.local import layer
from infra.clouds.local.kubernetes import configuration
from infra.clouds.local.layer import Recipe

NAME = "kubernetes-image"
"""The resource's name."""
RECIPE = Recipe(
    title="Kubernetes",
    scheduler="kubernetes",
    packages=("etcd-server", "containerd", "runc", "containernetworking-plugins"),
    install=(Path(__file__).parent / "install.sh").read_text(),
    files={**configuration.units(), **configuration.files()},
)


class LayerProvider(layer.LayerProvider):
    """Makes Kubernetes'."""

    recipe = RECIPE
