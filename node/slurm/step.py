"""The steps of this job of Slurm's: the command that runs a program on one node as a step of its own beside the ranks',
and their end on a node whose srun is gone."""

from __future__ import annotations

import ctypes
import subprocess
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


def end_all(number: str) -> None:
    """Kill the slurmstepds of Slurm's job `number` on this node, this process' own among them: to be called last, when
    the ranks are dead, on a node that has lost the job's sruns.

    A slurmstepd tells its srun that its tasks have ended. If that one's node is dead, it tries six times for two
    seconds each (Slurm's slurmstepd/mgr.c: _send_srun_resp_msg), then as often the slurmstepd above it, while slurmd
    looks only every ten seconds whether it is done (slurmd/req.c: _pause_for_job_completion). Meanwhile, for half a
    minute, this node could not run the job that goes on. Without sudo's leave that is what happens.
    """
    pattern = rf"^slurmstepd: \[{number}\."
    subprocess.run(["sudo", "-n", "pkill", "-KILL", "-f", pattern], capture_output=True, check=False)
