"""`fab up | head`: a reader that goes away does not end what changes a stack."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHANGING = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as in pulumi: a write to a closed pipe kills
for step in range(40):
    for stream in (sys.stdout, sys.stderr):
        print("resource", step, "x" * 5000, file=stream, flush=True)
    time.sleep(0.01)
Path(sys.argv[1]).write_text("all made")
"""
VERB = """
import sys
from fabfile.stacks import pulumi_cli
code = pulumi_cli.follow([sys.executable, "-c", sys.argv[1], sys.argv[2]])
print("the verb goes on to its end as well")
sys.exit(code)
"""


@pytest.mark.parametrize("streams", [["stdout"], ["stdout", "stderr"]])
def test_what_changes_a_stack_comes_to_its_end(streams: list[str], tmp_path: Path) -> None:
    reading, writing = os.pipe()
    made = tmp_path / "made"
    errors = writing if "stderr" in streams else subprocess.DEVNULL
    argv: list[str | Path] = [sys.executable, "-c", VERB, CHANGING, made]
    verb = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=writing, stderr=errors)
    os.close(writing)
    assert os.read(reading, 20).startswith(b"resource")
    os.close(reading)
    assert verb.wait(60) == 0
    assert made.read_text() == "all made"


def test_all_of_the_output_comes_in_order(tmp_path: Path) -> None:
    argv: list[str | Path] = [sys.executable, "-c", VERB, CHANGING, tmp_path / "made"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    for output in (done.stdout.removesuffix("the verb goes on to its end as well\n"), done.stderr):
        assert [line.split()[1] for line in output.splitlines()] == [str(step) for step in range(40)]
