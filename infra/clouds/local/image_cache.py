"""The cache of golden images: `python -m infra.clouds.local.image_cache list|unused|prune`.

`list` prints JSON: [{id, profile, collectives, over, gb, used_by: [stacks]}]; `over` is the image under Slurm's layer,
else empty. `unused` prints what `prune` would remove.
`prune` removes the images, and then the bases, from which no stack's node was booted, Kubernetes' programs if no
stack has nodes with it, and Pulumi's command, where it was built here, if this machine has no stack; it prints what it
removed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from infra.clouds.local import image, paths, trees
from infra.errors import OperationError, UsageError, prints_json
from infra.state import operation


def used() -> dict[str, list[str]]:
    """Image id -> the stacks with a node booted from it, or from a layer over it."""
    users: dict[str, set[str]] = {}
    for spec in paths.home().glob("stacks/*/nodes/*/spec.json"):
        try:
            for name in image.lineage(json.loads(spec.read_text())["image"]):
                users.setdefault(name, set()).add(spec.parts[-4])
        except (ValueError, KeyError, TypeError) as error:
            # The image of a damaged record is unknown, so no image may be removed.
            why = f"it has no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
            raise OperationError(
                f"{spec}: this record of a node is damaged ({why}); run: fab recover --stack {spec.parts[-4]}"
            ) from None
    return {name: sorted(stacks) for name, stacks in users.items()}


def listing() -> list[dict[str, Any]]:
    """The images of the cache, as in the module docstring; sizes in GiB."""
    users, rows = used(), []
    for name in image.baked():
        known, gb = image.record(name) or {}, round(_size(paths.images() / name) / 2**30, 1)
        facts = {key: known.get(key, "?") for key in ("profile", "collectives")}
        rows.append({"id": name, **facts, "over": known.get("parent", ""), "gb": gb, "used_by": users.get(name, [])})
    return rows


def _doomed() -> tuple[dict[str, str], list[Path]]:
    """What no stack uses: (image id -> description for messages, bases that no remaining image needs)."""
    doomed = {row["id"]: f"{row['gb']} GiB" for row in listing() if not row["used_by"]}
    in_use = used()
    old = "of a version whose nodes were root on this machine"
    doomed |= {name: old for name in image.outdated() if name not in in_use}
    needed = {image.base_of(name) for name in (*image.baked(), *image.outdated()) if name not in doomed}
    return doomed, [base for base in sorted((paths.home() / "base").glob("*")) if base.name not in needed]


def _unused() -> list[str]:
    """What `prune` would remove, as lines for the user."""
    doomed, bases = _doomed()
    images = [f"image {name} ({what})" for name, what in doomed.items()]
    return [
        *images,
        *(f"base {base.name}" for base in bases),
        *(f"kubernetes {path.name}" for path in _programs()),
        *(f"pulumi {path.name} (the command: make pulumi builds it again)" for path in _pulumi_builds()),
    ]


def _programs() -> list[Path]:
    """The folders of Kubernetes' programs, if no stack has them in use."""
    if any(paths.home().glob("stacks/*/kubernetes")):
        return []
    return sorted(path for path in paths.kubernetes().glob("*") if path.is_dir())


def _pulumi_builds() -> list[Path]:
    """The folders of Pulumi's command, if there is no stack, which it could be needed to remove."""
    if any(paths.home().glob("stacks/*")):
        return []
    return sorted(path for path in paths.pulumi().glob("*") if path.is_dir() and not path.is_symlink())


@contextmanager
def _nothing_is_made() -> Iterator[None]:
    """Hold the locks of bakes and of builds of Kubernetes and of Pulumi: a base without an image, and programs without
    a stack, may be theirs. LockBusy while one of them is at work."""
    directories = [paths.images(), paths.kubernetes()]
    if paths.pulumi().exists():
        directories.append(paths.pulumi())
    with ExitStack() as locks:
        for directory in directories:
            locks.enter_context(operation.lock(directory, exclusive=True, timeout=1.0))
        yield


def unused() -> list[str]:
    """What `prune` would remove, as lines for the user. Raises LockBusy while a stack makes any of it."""
    if not paths.home().exists():
        return []
    with _nothing_is_made():
        return _unused()


def prune() -> list[str]:
    """Remove what no stack uses; a base stays while an image needs it. Raises LockBusy while a stack makes any."""
    with _nothing_is_made():
        removed = _unused()
        doomed, bases = _doomed()
        for name in doomed:
            image.remove(name)
        builds = _pulumi_builds()
        if builds:
            (paths.pulumi() / "bin").unlink(missing_ok=True)
        for folder in (*bases, *_programs(), *builds):
            trees.remove(folder)
    return removed


def _size(path: Path) -> int:
    """Bytes on disk below a path."""
    done = subprocess.run(["du", "-s", "--block-size=1", str(path)], capture_output=True, text=True, check=False)
    if not done.stdout:  # not the exit code: it is 1 if files vanish meanwhile, which does not matter
        raise OperationError(f"{path}: {done.stderr.strip() or 'du says nothing'}")
    return int(done.stdout.split()[0])


@prints_json
def main() -> object:
    """Run the verb of the command line; returns what it lists or removed, for JSON. UsageError if the cache is
    root's."""
    parser = argparse.ArgumentParser(prog="python -m infra.clouds.local.image_cache")
    parser.add_argument("verb", choices=("list", "unused", "prune"))
    verb = parser.parse_args().verb
    for folder in (paths.home(), paths.images()):
        if folder.exists() and not os.access(folder, os.R_OK | os.X_OK):
            raise UsageError(f"{folder} is root's, as are the machines made from it: run this with sudo")
    return {"list": listing, "unused": unused, "prune": prune}[verb]()


if __name__ == "__main__":
    sys.exit(main())
