"""Commands that somebody starts with Ctrl-C's signal ignored, as `nohup` and a shell's `&` do: fab, and the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fabfile import output

ROOT = Path(__file__).resolve().parents[2]
BACKGROUND = ("bash", "-c", 'trap "" INT QUIT; exec "$@"', "background")
"""What comes after it ignores both keyboard signals from its start."""
TIMEOUT_S = 60

CHILD = """
import signal, sys
try:
    print("up", flush=True)
    print("still up:", sys.stdin.readline().strip(), flush=True)
    signal.pause()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
FOLLOW = "import sys; from fabfile.stacks import pulumi_cli; sys.exit(pulumi_cli.follow(sys.argv[1:]))"


def test_what_the_tests_start_ignores_no_keyboard_signal() -> None:
    code = "import signal; print([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGQUIT)])"
    shown = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert "SIG_IGN" not in shown
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.acceptance  # a pytest of its own
def test_tests_in_the_background_ignore_none_either() -> None:
    test = f"{__file__}::{test_what_the_tests_start_ignores_no_keyboard_signal.__name__}"
    options = ("-q", "-p", "no:cacheprovider", "--strict-markers")
    argv = [*BACKGROUND, sys.executable, "-m", "pytest", *options, test]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout


def test_fab_in_the_background_goes_on_at_ctrl_c_and_ends_at_sigterm() -> None:
    argv = [*BACKGROUND, sys.executable, "-c", FOLLOW, sys.executable, "-c", CHILD]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as fab:
        assert fab.stdin is not None and fab.stdout is not None
        assert fab.stdout.readline() == "up\n"
        fab.send_signal(signal.SIGINT)
        fab.stdin.write("yes\n")
        fab.stdin.flush()
        assert fab.stdout.readline() == "still up: yes\n"
        fab.send_signal(signal.SIGTERM)
        assert fab.stdout.readline() == "interrupted\n"
        assert fab.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("ignored", [True, False])
def test_ctrl_c_that_comes_too_early_is_raised_later_unless_it_is_ignored(ignored: bool) -> None:
    before = signal.getsignal(signal.SIGINT)
    if ignored:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    steps = []
    try:
        with output.interrupted_later():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("block done")
        steps.append("goes on")
    except KeyboardInterrupt:
        steps.append("interrupted")
    finally:
        signal.signal(signal.SIGINT, before)
    assert steps == ["block done", "goes on" if ignored else "interrupted"]
