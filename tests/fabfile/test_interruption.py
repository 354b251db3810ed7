"""An interrupted update ends its program, whichever language host Pulumi has."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from polling import until

from fabfile.stacks import interruption, pulumi_cli

PULUMI = """#!{python}
# A pulumi that waits for its program to end, whatever it is told, as one with an old language host does.
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
program = subprocess.Popen([sys.executable, {program!r}])
print("has begun", flush=True)
sys.exit(3 if program.wait() == -signal.SIGTERM else 4)
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_update_does_not_wait_for_its_program(
    signum: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / interruption.EXECUTABLE
    sign = tmp_path / "begun"
    program.write_text(
        "import pathlib, signal, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"pathlib.Path({str(sign)!r}).touch()\n"
        "time.sleep(60)\n"
    )
    (tmp_path / "pulumi").write_text(PULUMI.format(python=sys.executable, program=str(program)))
    (tmp_path / "pulumi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(interruption, "GRACE_S", 0.2)
    monkeypatch.setattr(pulumi_cli, "ROOT", tmp_path)

    def interrupt() -> None:
        until(sign.exists, 30, "the program has begun")
        os.kill(os.getpid(), signum)

    began = time.monotonic()
    threading.Thread(target=interrupt).start()
    assert pulumi_cli.follow(["pulumi", "up", "--stack", "yard"]) == pulumi_cli.INTERRUPTED
    assert time.monotonic() - began < 45, "it has not waited for the program's own end"
