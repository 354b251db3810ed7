"""The command that runs a program on one node of this job, as a step of its own beside the ranks'."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from fabfile.launchers import SYSTEM_PYTHON
from fabfile.launchers.srun import STEP

_PR_SET_PDEATHSIG = 1


def on(node: str, program: str, words: Sequence[str], *, stdin: bool = False) -> list[str]:
    """srun's command line for a command of the node program (see node/main.py). With `stdin` it reads ours."""
    where = ["--nodes=1", "--ntasks=1", "--ntasks-per-node=1", f"--nodelist={node}"]
    read = [] if stdin else ["--input=none"]
    return ["srun", *STEP, *where, *read, SYSTEM_PYTHON, "-I", program, *words]


def signalled_with_slurmstepd(number: int) -> None:
    """Have this process sent a signal when its parent, slurmstepd, dies. Slurm does not notice that for minutes, while
    what the slurmstepd has started goes on."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
