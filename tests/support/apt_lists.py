"""The real apt under a test machine's root, and another apt that holds the lock of its package lists."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from bootstrap_runner import Machine

HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


def real_apt(machine: Machine) -> None:
    """Let `apt-get update` be the real one, without a source, and so without network; its other verbs do nothing. Skips
    the test where there is no apt."""
    apt = shutil.which("apt-get", path="/usr/bin:/bin")
    if not apt:
        pytest.skip("no apt on this machine")
    for folder in ("state/lists/partial", "cache/archives/partial", "etc"):
        (machine.root / "apt" / folder).mkdir(parents=True)
    (machine.root / "apt/status").touch()
    (machine.root / "apt/config").write_text(
        f'Dir::State "{machine.root}/apt/state"; Dir::State::status "{machine.root}/apt/status";\n'
        f'Dir::Cache "{machine.root}/apt/cache"; Dir::Etc "{machine.root}/apt/etc"; APT::Sandbox::User "";\n'
        "APT::Update::Post-Invoke {}; APT::Update::Post-Invoke-Success {}; DPkg::Post-Invoke {};\n"
    )
    real = (
        f'[[ "$*" != *update* ]] || APT_CONFIG={machine.root}/apt/config exec {apt} -c {machine.root}/apt/config "$@"'
    )
    machine.program("apt-get", real)


def lists_held(machine: Machine, seconds: float) -> subprocess.Popen[str]:
    """Another apt, as far as the lock of the package lists is concerned; it has it by now, for so many seconds."""
    lock = machine.root / "apt/state/lists/lock"
    argv = [sys.executable, "-c", HOLD, str(lock), str(seconds)]
    holder = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert holder.stdout and holder.stdout.readline() == "held\n"
    return holder
