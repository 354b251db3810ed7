"""The plan of a launcher by its name."""

from __future__ import annotations

from fabfile.launchers import Found, Launch, Plan, mpirun, torchrun

_PLANS = {"mpirun": mpirun.plan, "torchrun": torchrun.plan}


def plan(launcher: str, launch: Launch, found: Found) -> Plan:
    """The plan of the launcher of this name."""
    return _PLANS[launcher](launch, found)
