"""`fab report`: one HTML page about a run, or about two beside each other, that needs nothing but a browser."""

from __future__ import annotations

import os
from pathlib import Path

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import targets
from fabfile.output import interruptible, say
from fabfile.report import gather, page
from fabfile.report.facts import Run


@task(
    positional=["id", "id2"],
    help={
        "id": "the run: its name, its number, or a folder that was fetched",
        "id2": "a second one, to compare with",
        "out": "the file to write; default: report-ID.html",
        "stack": "the stack",
        "inventory": "an inventory file instead of a stack",
    },
)
def report(_c: Context, id: str, id2: str = "", out: str = "", stack: str = "", inventory: str = "") -> None:
    """Write a page about a run: losses, speed, where the time went, cost, configuration; two runs are compared."""
    wanted = [id, *([id2] if id2 else [])]
    with interruptible():
        runs = _runs(wanted, stack, inventory)
    path = Path(out or f"report-{'-and-'.join(run.id for run in runs)}.html").expanduser()
    write(path, page.render(runs))
    say(f"written: {path} ({path.stat().st_size / 1000:.0f} kB; needs nothing but itself)")
    say(f"next: open {path} in a browser")


def _runs(wanted: list[str], stack: str, inventory: str) -> list[Run]:
    """In the order asked for; the cluster is asked only for what is no folder here."""
    found = {name: gather.from_folder(Path(name).expanduser()) for name in wanted if is_folder(name)}
    remote = [name for name in dict.fromkeys(wanted) if name not in found]
    if remote:
        found |= zip(remote, gather.from_cluster(targets.load(stack, inventory), remote), strict=True)
    return [found[name] for name in wanted]


def is_folder(name: str) -> bool:
    """A path, not a name: `runs/demo-1`, `./demo-1`; a folder that happens to be called like a run is not meant."""
    return os.sep in name


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise Exit(f"{path}: {error.strerror}", code=2) from None
