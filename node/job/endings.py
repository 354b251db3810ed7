"""Who has ended a job: its program, which would end so again; somebody who wished it; or machines and their network.

This is the one place that says which ends are the program's own. A managed job is resumed by its manager unless its
program or somebody has ended it (fabfile/managed/manager.py).
"""

from __future__ import annotations

import signal
from typing import NamedTuple

PROGRAM = "program"
"""Bad input, a loss that is not finite, a bug, want of memory: another attempt would end in the same way."""
SOMEBODY = "somebody"
"""A user, or a limit of time that somebody has set."""
MACHINES = "machines"
"""A rank or a node that was lost, killed from outside or silent, a full disk, a store that does not answer: also all
that nobody has said more of."""

WANT_OF_MEMORY = "was killed for want of memory"
"""In the reason of a pod that the kernel has ended, with all that was in it, as it used more memory than it may."""
REFUSED, FAULT = 2, 3
"""The trainer's exit codes (training/train.py) for bad input, and for what would come again. It ends with 1 if another
rank, the network or a disk has failed."""
_CRASHES = (signal.SIGSEGV, signal.SIGILL, signal.SIGFPE)
"""What a program does to itself. SIGABRT is not among them: NCCL and gloo abort a rank that has lost another one."""


class Ending(NamedTuple):
    """How a job has ended: its state, why, and who has ended it."""

    state: str
    reason: str
    by: str = MACHINES


def is_own(code: int, *, starved: bool, is_users: bool) -> bool:
    """Whether a rank that ended with this exit code, or minus the number of a signal, has failed by itself. `starved`:
    its node ran out of memory. `is_users`: it runs a user's program, of whose exit codes nothing is known."""
    return starved or -code in _CRASHES or (code > 0 if is_users else code in (REFUSED, FAULT))
