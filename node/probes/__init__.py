"""Probes of `fab check`: each reads its task from stdin and prints lines of JSON.

When stdin ends, the operator is gone: the probe then kills itself and everything that it started.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def say(**what: object) -> None:
    """Print a line of JSON in one write, as the lines of many ranks share one pipe."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def wait_for_operator() -> None:
    """Return at the end of stdin: the operator is gone, or needs no more."""
    while os.read(0, 4096):
        pass


def end_with_stdin() -> None:
    """Wait for the end of stdin, then kill this process' group."""
    wait_for_operator()
    os.killpg(0, signal.SIGKILL)
