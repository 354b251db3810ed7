"""Slurm's image: a layer over the image of a profile, which stays as it is for nodes without Slurm.

The packages are installed in the profile's image without booting it, from the host's own archive. Measured: 57 MB.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
from pulumi.dynamic import Resource

from infra.clouds.local import bake, base_image, cgroup, image, paths, rootfs, system_command
from infra.clouds.local.image import ImageProvider
from infra.clouds.local.nspawn import NspawnMachine
from infra.clouds.local.slurm.configuration import SLURMD_OPTIONS
from infra.clouds.naming import node
from infra.errors import OperationError, UsageError, say

PACKAGES = ("slurm-wlm", "munge", "libpmix2", "libpmi2-0")
INSTALL = (Path(__file__).parent / "install.sh").read_text()
NAME = "slurm-image"
"""The resource's name."""
TIMEOUT = 900.0
"""Seconds for the installation; it takes about 20."""
_APT = "etc/apt/apt.conf.d/99trainyard-host"
_RESTART = "[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestart=on-failure\nRestartSec=1\n"
FILES = {
    "etc/systemd/system/slurmctld.service.d/trainyard.conf": f"{_RESTART}[Unit]\nConditionHost={node(0)}\n",
    "etc/systemd/system/slurmd.service.d/trainyard.conf": (
        f"{_RESTART}Environment=SLURMD_OPTIONS='{SLURMD_OPTIONS}'\n"
    ),
    # `up` changes the nodes' one slurm.conf from outside; Slurm reads a changed list of nodes only when it starts. Jobs
    # that run stay: their processes are slurmstepd's, which these restarts leave alone.
    "etc/systemd/system/trainyard-slurm-changed.path": (
        "[Unit]\nDescription=Watch Slurm's configuration\n[Path]\nPathChanged=/etc/slurm/slurm.conf\n"
        "[Install]\nWantedBy=multi-user.target\n"
    ),
    "etc/systemd/system/trainyard-slurm-changed.service": (
        "[Unit]\nDescription=Restart Slurm with its changed configuration\n[Service]\nType=oneshot\n"
        "ExecStart=systemctl restart slurmctld.service slurmd.service\n"
    ),
}
"""Files of the layer. slurmctld is enabled on all nodes, and starts on the head alone."""
SEALED = (*bake.SEALED, _APT, "etc/munge/munge.key")


def key(parent: str) -> str:
    """The layer's name: a hash of the image under it and of everything that goes into it."""
    parts = [parent, *PACKAGES, INSTALL, repr(sorted(FILES.items())), *SEALED]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def check(parent: str) -> None:
    """Raise UsageError if the layer is to be made and this machine has nothing to make it from. Changes nothing."""
    if image.record(key(parent)) is None and not base_image.sources():
        raise UsageError("scheduler = 'slurm': /etc/apt names no archive of Debian or Ubuntu to install Slurm from")


@dataclass(frozen=True)
class LayerBake:
    """Makes the layer, for one stack."""

    stack: str
    parent: str
    say: Callable[[str], None]
    check: Callable[[], None]
    """Called while waiting; raises when the result is no longer wanted."""

    def run(self) -> None:
        """Install, seal, and put the layer into the cache. The builder is removed, even after an error."""
        name, began = key(self.parent), time.monotonic()
        self.say(f"image {name}: Slurm over image {self.parent}")
        builder = NspawnMachine(self.stack, bake.BUILDER, paths.build(self.stack, name))
        builder.remove()  # a killed bake may have left one
        try:
            builder.mount(image.layers(self.parent))
            self._install(builder)
            builder.stop()
            for pattern in SEALED:
                rootfs.remove(builder.root, pattern)
            rootfs.write(builder.root, "etc/machine-id", "")
            builder.unmount()
            bake.store(builder, name, {**(image.record(self.parent) or {}), "parent": self.parent})
        finally:
            builder.remove()
        self.say(f"image {name}: made in {time.monotonic() - began:.0f} s")

    def _install(self, builder: NspawnMachine) -> None:
        for name, text in FILES.items():
            rootfs.write(builder.root, name, text)
        for number, source in enumerate(base_image.sources()):
            rootfs.write(builder.root, f"etc/apt/sources.list.d/{number}{source.suffix}", source.read_text())
        options = "".join(f"{line}\n" for line in base_image.apt_options())
        rootfs.write(builder.root, _APT, options, mode=0o600)  # a proxy may have a password
        own = ["--resolv-conf=bind-host", "--timezone=off", *bake.borrowed(builder.directory / "borrowed")]
        argv = builder.inside(["/bin/bash", "-c", INSTALL, "install.sh", *PACKAGES], own)
        joins, scratch = cgroup.make(self.stack, bake.BUILDER), builder.directory
        try:
            system_command.run_watched(argv, joins, scratch, timeout=TIMEOUT, check=self.check)
        except system_command.SystemCommandError as error:
            raise OperationError(f"Slurm cannot be installed: {error}") from None


class LayerProvider(ImageProvider):
    """As for the image under it: create makes a layer that is not in the cache; delete leaves it there."""

    def check_recipe(self, props: dict[str, Any]) -> None:
        """Nothing can be missing: the image under it was made before."""

    def bake(self, props: dict[str, Any], check: Callable[[], None]) -> None:
        LayerBake(props["stack"], props["parent"], say, check).run()


class Layer(Resource, module="local", name="Layer"):
    """The image of nodes with Slurm."""

    image: pulumi.Output[str]

    def __init__(self, *, stack: str, image: str, parent: pulumi.Output[str], opts: pulumi.ResourceOptions) -> None:
        """`image`: key(parent), which is known before the parent is there."""
        inputs = {"stack": stack, "image": image, "parent": parent, "software": None}
        super().__init__(LayerProvider(), NAME, inputs, opts)
