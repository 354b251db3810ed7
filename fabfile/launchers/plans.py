"""The plan of a launcher by its name."""

from __future__ import annotations

from fabfile.launchers import (
    KEEPERS,
    KUBERNETES,
    SLURM,
    HeadValues,
    Launch,
    LaunchPlan,
    keepers,
    mpirun,
    srun,
    torchrun,
)

_PLANS = {
    "mpirun": mpirun.plan,
    "torchrun": torchrun.plan,
    SLURM: srun.plan,
    KUBERNETES: keepers.plan,
    KEEPERS: keepers.plan,
}


def plan(launcher: str, launch: Launch, found: HeadValues) -> LaunchPlan:
    """The plan of the launcher of this name."""
    return _PLANS[launcher](launch, found)
