"""`fab report`: one self-contained HTML page about a run, or about several side by side."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile import backends
from fabfile.output import say
from fabfile.report import load, page
from fabfile.report.curves import COLOURS
from fabfile.report.run import JobRun

MOST = 64  # most runs on one page, as of one sweep; of more than six the best six are drawn
REFRESH = 15  # seconds between two writes of the page with --watch; the browser reloads it as often


@task(
    positional=["id", "more"],
    help={
        "id": "the run: its name, its number, latest, or a folder that was fetched; STACK:ID on another stack",
        "more": "more runs, to compare with",
        "out": "the file to write; default: report-ID.html",
        "watch": "write it again and again until the runs are over; the page reads itself anew",
    },
)
def report(
    _c: Context,
    id: str,
    more: Sequence[str] | None = None,
    out: str = "",
    watch: bool = False,
    stack: str = "",
    inventory: str = "",
) -> None:
    """Write a page about a run: losses, speed, where the time went, cost, configuration; several runs are compared."""
    wanted = [id, *(more or ())]
    if len(wanted) > MOST:
        raise Exit(f"{len(wanted)} runs: at most {MOST} on one page", code=2)
    path = _written(wanted, stack, inventory, out, watch=watch)
    if not watch:
        say(f"next: open {path} in a browser")


def _written(wanted: list[str], stack: str, inventory: str, out: str, *, watch: bool) -> Path:
    """Write the page, with `watch` again and again until the runs are over; returns its path."""
    announced = False
    while True:
        runs = _runs(wanted, stack, inventory)
        path = Path(out or _name([run.id.replace(":", "-") for run in runs])).expanduser()
        under_way = [run.id for run in runs if run.ended is None]
        write(path, page.render(runs, refresh=REFRESH if watch and under_way else 0))
        if not (watch and under_way):
            say(f"written: {path} ({path.stat().st_size / 1000:.0f} kB; needs nothing but itself)")
            return path
        if not announced:
            say(f"open {path} in a browser: it follows {', '.join(under_way)} (Ctrl-C ends that)")
        announced = True
        time.sleep(REFRESH)


def _name(ids: Sequence[str]) -> str:
    """The page's own name; of many runs it has the first one only."""
    named = ids if len(ids) <= len(COLOURS) else [ids[0], f"{len(ids) - 1}-more"]
    return f"report-{'-and-'.join(named)}.html"


def _runs(wanted: list[str], stack: str, inventory: str) -> list[JobRun]:
    """The runs in the order asked for. A name with a slash is a folder here, STACK:ID a job of another stack; the
    others are jobs on the cluster."""
    found = {name: load.from_folder(Path(name).expanduser()) for name in wanted if os.sep in name}
    by_stack: dict[str, list[str]] = {}
    for name in dict.fromkeys(wanted):
        if name not in found:
            by_stack.setdefault(name.rpartition(":")[0], []).append(name)
    for other, names in by_stack.items():
        backend = backends.connect(other, "") if other else backends.connect(stack, inventory)
        runs = load.from_cluster(backend, [name.rpartition(":")[2] for name in names])
        if other:
            runs = [replace(run, id=f"{other}:{run.id}") for run in runs]
        found |= zip(names, runs, strict=True)
    return [found[name] for name in wanted]


def write(path: Path, text: str) -> None:
    """Write the file atomically; Exit 2 if it cannot be written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        why = f"there is no folder {path.parent}" if not path.parent.is_dir() else error.strerror
        raise Exit(f"{path}: {why}", code=2) from None
