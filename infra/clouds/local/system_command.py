"""Runs system commands; an error has the command and the end of its output."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from infra.errors import OperationError


class SystemCommandError(OperationError):
    """A system command failed."""


_SHOWN = 300
"""Most characters of a line of output in an error: a path in it may be hundreds of kilobytes long."""


def run(
    argv: Sequence[str],
    *,
    name: str = "",
    timeout: float | None = 60.0,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run `argv` to its end and return its standard output, with U+FFFD for what is not UTF-8.

    `name` is what errors name, by default all of `argv`. `cwd` and `env` take the place of this process's folder and
    environment. Raises SystemCommandError if the command is missing, fails, or takes longer than `timeout` seconds;
    None: it may take as long as it needs.
    """
    name = name or " ".join(argv)
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            cwd=cwd,
            env=env,
        )
    except FileNotFoundError:
        raise SystemCommandError(f"{argv[0]}: command not found") from None
    except subprocess.TimeoutExpired:
        raise SystemCommandError(f"{name}: no end within {timeout:.0f} s") from None
    if done.returncode != 0:
        raise SystemCommandError(_failure(name, done.returncode, done.stderr.strip() or done.stdout.strip()))
    return done.stdout


def run_watched(
    argv: Sequence[str], joins: Sequence[Path], scratch: Path, *, timeout: float, check: Callable[[], None]
) -> None:
    """Run a long `argv` and call `check` repeatedly; when it raises, kill the command with its children.

    Even if this process is killed, everything of the command can be found: it runs in the control groups whose
    `cgroup.procs` files are `joins`, has its temporary files in `scratch`, and mounts only in its own namespace.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            in_groups(["unshare", "--mount", *argv], joins),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "TMPDIR": str(scratch)},
            start_new_session=True,
        )
        deadline = time.monotonic() + timeout
        try:
            while process.poll() is None:
                check()
                if time.monotonic() > deadline:
                    raise SystemCommandError(f"{argv[0]}: no end within {timeout:.0f} s")
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                _end(process)
        if process.returncode != 0:
            output.seek(0)
            raise SystemCommandError(_failure(argv[0], process.returncode, output.read().strip()))


def in_groups(argv: Sequence[str], joins: Sequence[Path]) -> list[str]:
    """`argv` behind a shell that joins the control groups before it execs the command: no process is ever outside."""
    script = 'n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ > "$1"; shift; n=$((n - 1)); done; exec "$@"'
    return ["sh", "-euc", script, "sh", str(len(joins)), *map(str, joins), *argv]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the whole process group first: mmdebstrap then unmounts what it has mounted."""
    for signum, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            return


def _failure(name: str, code: int, output: str) -> str:
    lines = [line[:_SHOWN] for line in (output or "it printed nothing").splitlines()[-3:]]
    shown = "".join(character if character.isprintable() else "?" for character in " / ".join(lines))
    return f"{name}: exit code {code}: {shown}"
