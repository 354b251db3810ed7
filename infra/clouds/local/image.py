"""The golden image as a Pulumi resource, and the cache of images."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource

from infra.clouds.dynamic_provider import PlainProvider
from infra.clouds.local import ids, paths, trees
from infra.clouds.local.bake import Bake
from infra.errors import OperationError, say
from infra.state import operation


def record(image: str) -> dict[str, Any] | None:
    """image.json of a baked image; None if there is none, or its files have other ids than the machines', or the image
    under it is not there."""
    try:
        loaded = _load(image)
    except FileNotFoundError:
        return None
    usable = loaded.get("ids") == ids.RANGE and ("parent" not in loaded or record(loaded["parent"]) is not None)
    return loaded if usable else None


def lineage(image: str) -> list[str]:
    """An image and those under it, as far as they are in the cache."""
    try:
        parent = _load(image).get("parent")
    except FileNotFoundError:
        return [image]
    return [image, *lineage(parent)] if parent else [image]


def base_of(image: str) -> str:
    """The base under an image of the cache, also of an outdated one."""
    return str(_load(image)["base"])


def _load(image: str) -> dict[str, Any]:
    path = paths.images() / image / "image.json"
    try:
        loaded: Any = json.loads(path.read_text())
    except ValueError as error:
        raise OperationError(f"{path}: damaged ({error}): remove its folder, the next `fab up` bakes again") from None
    if not isinstance(loaded, dict) or "base" not in loaded:
        raise OperationError(f"{path}: damaged (it names no base): remove its folder, the next `fab up` bakes again")
    return loaded


def layers(image: str) -> list[Path]:
    """The directories under a node's root, the uppermost first."""
    known = record(image)
    if known is None:
        raise OperationError(f"image {image} is not in {paths.images()}")
    own = paths.images() / image / "layer"
    return [own, *(layers(known["parent"]) if "parent" in known else [paths.base(known["base"]) / "rootfs"])]


def baked() -> list[str]:
    """The ids of all usable images in the cache."""
    return sorted(name for name in _cached() if record(name) is not None)


def outdated() -> list[str]:
    """The ids of images that an older version made with other user ids than the machines'; they cannot be used."""
    return sorted(name for name in _cached() if record(name) is None)


def _cached() -> list[str]:
    return [path.parent.name for path in paths.images().glob("*/image.json")]


def remove(image: str) -> None:
    """Remove an image from the cache; its record goes first, so that an incomplete one is never used."""
    directory = paths.images() / image
    (directory / "image.json").unlink(missing_ok=True)
    trees.remove(directory)


@contextmanager
def one_at_a_time(directory: Path, what: str, watch: operation.CancellationWatch) -> Iterator[None]:
    """Two stacks that want the same thing in a cache make it once: the second waits. `what`: for a message."""
    waiting = False
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(operation.lock(directory, exclusive=True, timeout=0.1))
                break
            except operation.LockBusy:
                if not waiting:
                    say(f"{what}; waiting for it")
                waiting = True
                watch.check()
        yield


class ImageProvider(PlainProvider):
    """Create bakes an image that is not in the cache; delete leaves it there."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Bake it, unless it is in the cache; if another stack is baking, wait for that one first. `software` is its
        versions as JSON. OperationError if it cannot be made."""
        stack, image = props["stack"], props["image"]
        watch = operation.CancellationWatch()
        paths.close()
        with operation.lock(paths.stack(stack)):
            if record(image) is None:
                self.check_recipe(props)
                with one_at_a_time(paths.images(), "image: another stack is baking", watch):
                    if record(image) is None:
                        self.bake(props, watch.check)
        versions = (record(image) or {}).get("versions", {})
        return CreateResult(id_=image, outs={**props, "software": json.dumps(versions, sort_keys=True)})

    def check_recipe(self, props: dict[str, Any]) -> None:
        """Raise OperationError if the inputs do not say how to make the image."""
        if not props["user_data"]:
            known = ", ".join(baked()) or "none"
            raise OperationError(f"image = {props['image']!r}: not in {paths.images()}; there are: {known}")

    def bake(self, props: dict[str, Any], check: Callable[[], None]) -> None:
        """Make the image. `check` is called while waiting, and raises when the image is no longer wanted."""
        Bake(props["stack"], props["image"], props["user_data"], say, check).run()

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        """Another image replaces the resource, the new one first. Its recipe does not count: the name says it."""
        changed = olds["image"] != news["image"]
        return DiffResult(changes=changed, replaces=["image"] if changed else [], delete_before_replace=False)

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        """Dropped from the state once the cache has it no more: the next `up` bakes it again."""
        return ReadResult(id_="", outs={}) if record(id_) is None else ReadResult(id_=id_, outs=props)

    def delete(self, id_: str, props: dict[str, Any]) -> None:
        """Nothing: other stacks may use the image, and the next `up` will. `fab prune` empties the cache."""


class Image(Resource, module="local", name="Image"):
    """A golden image, named by a hash of its content."""

    image: pulumi.Output[str]
    software: pulumi.Output[str]

    def __init__(self, name: str, *, stack: str, image: str, user_data: str, opts: pulumi.ResourceOptions) -> None:
        """`user_data` bakes the image; empty: it must be in the cache already."""
        inputs = {"stack": stack, "image": image, "user_data": user_data, "software": None}
        super().__init__(ImageProvider(), name, inputs, opts)
