"""The README's two commands, as written, on machines with nothing on them: minimal Debian 12 and Debian 13.

    make bare                        both, all steps
    make bare BARE="debian13 user"   one machine, one step
    make bare-clean                  removes the cache: root file systems, pip's packages, images

The steps: `demo` (make demo, as root), `test` (make test: on Debian 12 as root, on Debian 13 as a user with sudo),
`user` (make demo, as that user). Each log is under the cache's logs/. What cannot run on a machine in a machine is in
DOES_NOT_NEST; what a test finds missing there by itself, and skips, is printed after `make test`.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from machine import HOME, PULUMI, RELEASES, USER, BareMachine

from infra.errors import OperationError
from infra.state import operation

# Tests of `make test` that need more than a machine in a machine has -> why. They run on the machine itself.
DOES_NOT_NEST: dict[str, str] = {}

# Part of `make test` that depends on the code alone, not on the machine -> why it is left out.
NOT_ABOUT_THE_MACHINE = {
    "tests/test_static.py::test_python": "lint and types of the same files say the same everywhere",
}

PYTEST_ARGS = "--numprocesses 2 --dist loadscope --no-loadscope-reorder"
STEPS = {"demo": "make demo", "test": "make test", "user": "make demo"}
TESTS_AS_USER = ("debian13",)
"""Machines on which a user with sudo runs `make test`; root runs it on the other."""
PROGRESS_S = 30


def main(words: list[str]) -> int:
    if words == ["clean"]:
        return clean()
    unknown = sorted(set(words) - {*RELEASES, *STEPS})
    if unknown:
        print(f"bare: {unknown[0]!r}: must be of {', '.join((*RELEASES, *STEPS))}, or clean", file=sys.stderr)
        return 2
    names = [name for name in RELEASES if name in words] or list(RELEASES)
    steps = [step for step in STEPS if step in words] or list(STEPS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed: list[str] = []
    with operation.lock(HOME, exclusive=True, timeout=1.0), ExitStack() as cleanup:
        for name in names:
            machine = BareMachine(name)
            cleanup.callback(machine.stop)
            failed += [f"{name} {step}" for step in steps_of(machine, steps)]
            machine.stop()
    print(
        f"bare: failed: {', '.join(failed)}" if failed else f"bare: {len(names) * len(steps)} steps passed", flush=True
    )
    return 1 if failed else 0


def steps_of(machine: BareMachine, steps: list[str]) -> list[str]:
    """Run the steps on a freshly booted machine; those that failed."""
    began = time.monotonic()
    machine.start()
    say(f"{machine.name}: booted, {time.monotonic() - began:.0f} s")
    return [step for step in steps if not passes(machine, step)]


def passes(machine: BareMachine, step: str) -> bool:
    line = STEPS[step]
    if step == "test":
        for name, why in {**DOES_NOT_NEST, **NOT_ABOUT_THE_MACHINE}.items():
            say(f"{machine.name}: left out: {name}: {why}")
        left_out = " ".join(f"--deselect {name}" for name in (*DOES_NOT_NEST, *NOT_ABOUT_THE_MACHINE))
        line = f"PATH=$PATH:{PULUMI} {line} PYTEST_ARGS='{PYTEST_ARGS} {left_out}'"
    as_user = step == "user" or (step == "test" and machine.name in TESTS_AS_USER)
    user = USER if as_user else "root"
    log = HOME / "logs" / f"{machine.name}-{step}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    say(f"{machine.name}: {line} as {user}; follow: tail -f {log}")
    began = time.monotonic()
    code = machine.run(line, log, user=user, each=PROGRESS_S, on_progress=lambda: say(f"  {last_line(log)}"))
    say(f"{machine.name}: {STEPS[step]} as {user}: exit code {code}, {time.monotonic() - began:.0f} s")
    if code != 0:
        print("\n".join(log.read_text(errors="replace").splitlines()[-30:]), flush=True)
    elif step == "test":
        for each in skipped(log):
            say(f"{machine.name}: {each}")
    return code == 0


def skipped(log: Path) -> list[str]:
    """The lines of pytest's summary that name skipped tests, with the reason."""
    lines = log.read_text(errors="replace").splitlines()
    return [line for line in lines if line.startswith("SKIPPED ")] or ["pytest skipped nothing"]


def last_line(log: Path) -> str:
    lines = log.read_bytes()[-2000:].decode(errors="replace").splitlines()
    return lines[-1][:150] if lines else ""


def clean() -> int:
    """Remove the cache and, of a run that was killed, its machines."""
    with operation.lock(HOME, exclusive=True, timeout=1.0):
        for name in RELEASES:
            BareMachine(name).stop()
        for directory in HOME.iterdir():
            shutil.rmtree(directory)
    HOME.rmdir()
    say(f"{HOME}: removed")
    return 0


def say(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OperationError as error:
        print(f"bare: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
