"""Interrupt a command, and end its Pulumi program where Pulumi's language host does not.

The providers of a local stack take the program's end for the interruption of what they do
(infra.state.operation). The language host that `make pulumi` builds is older than the command, and lets
the program wait for as long as a bake lasts.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from contextlib import suppress

import psutil

EXECUTABLE = "pulumi-language-python-exec"
GRACE_S = 2.0
"""Seconds that the language host has to end the program by itself."""


def hand_on(process: subprocess.Popen[bytes], signum: int, *, foreground: bool, is_pulumi: bool) -> None:
    """Interrupt a command, as this process was by `signum`.

    Args:
        foreground: whether the command is in the terminal's foreground group, which has had its SIGINT already.
        is_pulumi: whether it runs a program, which is ended if it is still there after GRACE_S seconds.
    """
    if is_pulumi:
        timer = threading.Timer(GRACE_S, _end_program, [process.pid])
        timer.daemon = True
        timer.start()
    if signum == signal.SIGTERM or not foreground:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)


def _end_program(pulumi: int) -> None:
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pulumi).children(recursive=True):
            # Each may have ended meanwhile, which is no reason to leave out the next.
            with suppress(psutil.NoSuchProcess):
                if any(word.endswith(EXECUTABLE) for word in process.cmdline()):
                    process.terminate()
