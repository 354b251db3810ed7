"""The Go toolchain that builds Kubernetes' programs and Pulumi's command from their modules."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from infra.errors import OperationError, UsageError, show_error

OLDEST = (1, 24)
"""The oldest Go that builds them; a newer one is fetched by this one where a module wants it (GOTOOLCHAIN)."""

_REPORT_SECONDS = 60.0


def check(purpose: str, remedy: str) -> None:
    """Raise UsageError if there is no `go` on PATH that is new enough.

    Args:
        purpose: what is built, as the first words of the error's line.
        remedy: the command that installs Go.
    """
    needs = f"{purpose}, with Go {OLDEST[0]}.{OLDEST[1]} or newer"
    installed = version()
    if installed is None:
        raise UsageError(f"{needs}, and there is no `go` on PATH; install it: {remedy}")
    if installed < OLDEST:
        raise UsageError(f"{needs}, and `go` on PATH is {installed[0]}.{installed[1]}: {remedy}")


def version() -> tuple[int, int] | None:
    """Return the version of the `go` on PATH; None without one."""
    if shutil.which("go") is None:
        return None
    # Go wants a home; sudo may leave none.
    env = {"HOME": "/root", **os.environ}
    shown = subprocess.run(["go", "version"], capture_output=True, text=True, check=False, env=env)
    match = re.search(r"go(\d+)\.(\d+)", shown.stdout)
    return (int(match[1]), int(match[2])) if match else None


def settings(work: Path, programs: Path) -> list[str]:
    """Return the environment of a build, as NAME=VALUE.

    Args:
        work: folder of all that the build needs and that is removed after it: modules, caches, home.
        programs: folder that `go install` writes to.
    """
    return [
        "CGO_ENABLED=0",
        "GOFLAGS=-trimpath -buildvcs=false -modcacherw",
        "GOWORK=off",
        f"GOBIN={programs}",
        f"GOCACHE={work / 'cache'}",
        f"GOPATH={work / 'path'}",
        f"HOME={work}",
    ]


def reporter(say: Callable[[str], None], subject: str, began: float) -> Callable[[], None]:
    """Return a function that says once a minute that a build goes on.

    Args:
        subject: what is built, as the first words of the line.
        began: when the build began, in seconds of time.monotonic().
    """
    last = [time.monotonic()]

    def report() -> None:
        now = time.monotonic()
        if now - last[0] > _REPORT_SECONDS:
            last[0] = now
            say(f"{subject}: still building, {(now - began) / 60:.0f} min")

    return report


def run_build(build: Callable[[], None]) -> int:
    """Run a build as a program of its own; returns its exit code. A build that is ended removes what it has made, and
    ends its compilers."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        build()
    except (UsageError, OperationError) as error:
        return show_error(error)
    except KeyboardInterrupt:
        return 130
    return 0
