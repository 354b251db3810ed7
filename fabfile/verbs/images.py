"""`fab images` and `fab prune`: the golden images that stay on this machine between stacks."""

from __future__ import annotations

from typing import Any

from invoke.context import Context
from invoke.tasks import task

from fabfile.output import say, table
from fabfile.question import ask, must_be_answerable
from fabfile.stacks.pulumi_cli import answer

_CACHE = "clouds.local.image_cache"


@task
def images(_c: Context) -> None:
    """List the golden images of nodes that are baked on this machine (container images: fab image list)."""
    cells = [
        (row["id"], _software(row), row["collectives"], f"{row['gb']} GiB", ", ".join(row["used_by"]) or "-")
        for row in answer(_CACHE, "list")
    ]
    say(table([("IMAGE", "PROFILE", "COLLECTIVES", "SIZE", "USED BY"), *cells]))
    say("next: fab prune  (removes the images that no stack uses)")


def _software(row: dict[str, Any]) -> str:
    """The profile; of Slurm's layer also the image under it, which stays while the layer is in use."""
    return f"slurm over {row['over']}" if row["over"] else str(row["profile"])


@task
def prune(_c: Context, yes: bool = False) -> None:
    """Remove the golden images that no stack uses; the next `up` bakes again."""
    unused = answer(_CACHE, "unused")
    if not unused:
        say("nothing to remove: every image is in use")
        return
    say("prune removes:\n" + "\n".join(f"    {line}" for line in unused))
    must_be_answerable(yes)
    if not yes:
        ask("remove them?")
    for line in answer(_CACHE, "prune"):
        say(f"removed {line}")
