"""Slurm's image: a layer over the image of a profile. Measured: 57 MB."""

from __future__ import annotations

from pathlib import Path

from infra.clouds.local import layer
from infra.clouds.local.layer import Recipe
from infra.clouds.local.slurm.configuration import SLURMD_OPTIONS
from infra.clouds.naming import node

NAME = "slurm-image"
"""The resource's name."""
_RESTART = "[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestart=on-failure\nRestartSec=1\n"
RECIPE = Recipe(
    title="Slurm",
    scheduler="slurm",
    packages=("slurm-wlm", "munge", "libpmix2", "libpmi2-0"),
    install=(Path(__file__).parent / "install.sh").read_text(),
    # slurmctld is enabled on all nodes, and starts on the head alone.
    files={
        "etc/systemd/system/slurmctld.service.d/trainyard.conf": f"{_RESTART}[Unit]\nConditionHost={node(0)}\n",
        "etc/systemd/system/slurmd.service.d/trainyard.conf": (
            f"{_RESTART}Environment=SLURMD_OPTIONS='{SLURMD_OPTIONS}'\n"
        ),
        # `up` changes the nodes' one slurm.conf from outside; Slurm reads a changed list of nodes only when it starts.
        # Jobs that run stay: their processes are slurmstepd's, which these restarts leave alone.
        "etc/systemd/system/trainyard-slurm-changed.path": (
            "[Unit]\nDescription=Watch Slurm's configuration\n[Path]\nPathChanged=/etc/slurm/slurm.conf\n"
            "[Install]\nWantedBy=multi-user.target\n"
        ),
        "etc/systemd/system/trainyard-slurm-changed.service": (
            "[Unit]\nDescription=Restart Slurm with its changed configuration\n[Service]\nType=oneshot\n"
            "ExecStart=systemctl restart slurmctld.service slurmd.service\n"
        ),
    },
    secrets=("etc/munge/munge.key",),
)


class LayerProvider(layer.LayerProvider):
    """Makes Slurm's."""

    recipe = RECIPE
