"""A layer of packages over the image of a profile, which stays as it is for nodes without them: Slurm's, Kubernetes'.

The packages are installed in the profile's image without booting it, from the host's own archive.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pulumi
from pulumi.dynamic import Resource

from infra.clouds.local import bake, base_image, cgroup, image, paths, rootfs, system_command
from infra.clouds.local.image import ImageProvider
from infra.clouds.local.nspawn import NspawnMachine
from infra.errors import OperationError, UsageError, say

TIMEOUT = 900.0
"""Seconds for the installation; it takes 20 to 30."""
_APT = "etc/apt/apt.conf.d/99trainyard-host"


@dataclass(frozen=True)
class Recipe:
    """What makes a layer."""

    title: str
    """Of the software, for messages."""
    scheduler: str
    """The value of the stack's key `scheduler` that asks for it."""
    packages: tuple[str, ...]
    install: str
    """Bash; its arguments are the packages."""
    files: Mapping[str, str]
    """Files of the layer, by their paths below the root."""
    secrets: tuple[str, ...] = ()
    """Files that the packages make, and that must differ between stacks."""

    @property
    def sealed(self) -> tuple[str, ...]:
        """What is removed before the layer is kept."""
        return (*bake.SEALED, _APT, *self.secrets)

    def key(self, parent: str) -> str:
        """The layer's name: a hash of the image under it and of everything that goes into it."""
        parts = [parent, *self.packages, self.install, repr(sorted(self.files.items())), *self.sealed]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def check(self, parent: str) -> None:
        """Raise UsageError if the layer is to be made and this machine has nothing to make it from. Changes nothing."""
        if image.record(self.key(parent)) is None and not base_image.sources():
            where = f"scheduler = {self.scheduler!r}"
            raise UsageError(f"{where}: /etc/apt names no archive of Debian or Ubuntu to install {self.title} from")


@dataclass(frozen=True)
class LayerBake:
    """Makes a layer, for one stack."""

    recipe: Recipe
    stack: str
    parent: str
    say: Callable[[str], None]
    check: Callable[[], None]
    """Called while waiting; raises when the result is no longer wanted."""

    def run(self) -> None:
        """Install, seal, and put the layer into the cache. The builder is removed, even after an error."""
        name, began = self.recipe.key(self.parent), time.monotonic()
        self.say(f"image {name}: {self.recipe.title} over image {self.parent}")
        builder = NspawnMachine(self.stack, bake.BUILDER, paths.build(self.stack, name))
        builder.remove()  # a killed bake may have left one
        try:
            builder.mount(image.layers(self.parent))
            self._install(builder)
            builder.stop()
            for pattern in self.recipe.sealed:
                rootfs.remove(builder.root, pattern)
            rootfs.write(builder.root, "etc/machine-id", "")
            builder.unmount()
            bake.store(builder, name, {**(image.record(self.parent) or {}), "parent": self.parent})
        finally:
            builder.remove()
        self.say(f"image {name}: made in {time.monotonic() - began:.0f} s")

    def _install(self, builder: NspawnMachine) -> None:
        for name, text in self.recipe.files.items():
            rootfs.write(builder.root, name, text)
        for number, source in enumerate(base_image.sources()):
            rootfs.write(builder.root, f"etc/apt/sources.list.d/{number}{source.suffix}", source.read_text())
        options = "".join(f"{line}\n" for line in base_image.apt_options())
        rootfs.write(builder.root, _APT, options, mode=0o600)  # a proxy may have a password
        own = ["--resolv-conf=bind-host", "--timezone=off", *bake.borrowed(builder.directory / "borrowed")]
        argv = builder.inside(["/bin/bash", "-c", self.recipe.install, "install.sh", *self.recipe.packages], own)
        joins, scratch = cgroup.make(self.stack, bake.BUILDER), builder.directory
        try:
            system_command.run_watched(argv, joins, scratch, timeout=TIMEOUT, check=self.check)
        except system_command.SystemCommandError as error:
            raise OperationError(f"{self.recipe.title} cannot be installed: {error}") from None


class LayerProvider(ImageProvider):
    """As for the image under it: create makes a layer that is not in the cache; delete leaves it there."""

    recipe: ClassVar[Recipe]

    def check_recipe(self, props: dict[str, Any]) -> None:
        """Nothing can be missing: the image under it was made before."""

    def bake(self, props: dict[str, Any], check: Callable[[], None]) -> None:
        LayerBake(self.recipe, props["stack"], props["parent"], say, check).run()


class Layer(Resource, module="local", name="Layer"):
    """The image of nodes with a scheduler's software."""

    image: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        provider: LayerProvider,
        *,
        stack: str,
        over: str,
        parent: pulumi.Output[str],
        opts: pulumi.ResourceOptions,
    ) -> None:
        """`over`: the image under it, as it is known before that is there; `parent`: the same once it is there."""
        inputs = {"stack": stack, "image": provider.recipe.key(over), "parent": parent, "software": None}
        super().__init__(provider, name, inputs, opts)
