"""Waits until Slurm can start jobs on every node of a cluster: `fab wait`'s last part where Slurm runs the jobs."""

from __future__ import annotations

import time

from invoke.exceptions import Exit

from fabfile.output import next_command, say
from fabfile.remote.fleet import Fleet

USABLE = ("idle", "mixed", "allocated", "completing", "planned")
DRAINED = ("drain", "draining", "drained", "maint", "reserved")
"""States that only a person ends."""
_FLAGS = "~#%$@^+-!"  # power saving, a planned reboot; not `*`: the node does not answer
_ASK = "sinfo --noheader --Node --Format=NodeHost:64,StateLong:32,Reason:300"
_LOG = "sudo -n journalctl --unit={unit} --lines=8 --no-pager --output=cat"
_NO_ANSWER = "slurmctld does not answer: "
_PAUSE = 0.3
_QUIET_SECONDS = 5.0


def wait_until_usable(fleet: Fleet, timeout: float) -> None:
    """Return when Slurm has every node of the inventory in a state in which jobs start.

    Exit 1, with each other node's state, reason and end of log, after `timeout` seconds, or at once for a drained node.
    """
    began = printed = time.monotonic()
    while wrong := unusable(fleet):
        now = time.monotonic()
        if now - began > timeout or any(state.startswith(DRAINED) for state in wrong.values()):
            raise _failure(fleet, wrong, now - began)
        if now - printed >= _QUIET_SECONDS:
            printed = now
            listed = "; ".join(f"{name}: {state}" for name, state in list(wrong.items())[:4])
            say(
                f"waiting for Slurm on {len(wrong)} of {len(fleet.cluster.nodes)} nodes ({now - began:.0f} s): {listed}"
            )
        time.sleep(_PAUSE)


def unusable(fleet: Fleet) -> dict[str, str]:
    """Node -> what Slurm says of it, for nodes that cannot be used; only the head if its slurmctld does not answer."""
    head = fleet.cluster.head
    result = fleet.run(_ASK, nodes=[head], timeout=30)[head.name]
    if not result.ok:
        lines = result.stderr.strip().splitlines()
        return {head.name: _NO_ANSWER + (lines[-1] if lines else result.why)}
    states = {}
    for line in result.stdout.splitlines():
        name, state, *reason = line.split(maxsplit=2)
        states[name] = (state.rstrip(_FLAGS), reason[0].strip() if reason else "none")
    found = {
        name: states.get(name, ("unknown to Slurm", "none")) for name in (node.name for node in fleet.cluster.nodes)
    }
    return {
        name: state + (f" ({reason})" if reason != "none" else "")
        for name, (state, reason) in found.items()
        if state not in USABLE
    }


def _failure(fleet: Fleet, wrong: dict[str, str], seconds: float) -> Exit:
    nodes = [node for node in fleet.cluster.nodes if node.name in wrong]
    unit = "slurmctld" if any(state.startswith(_NO_ANSWER) for state in wrong.values()) else "slurmd"
    logs = fleet.run(_LOG.format(unit=unit), nodes=nodes, timeout=30)
    lines = [f"Slurm cannot use {len(wrong)} of {len(fleet.cluster.nodes)} nodes after {seconds:.0f} s"]
    for name, state in wrong.items():
        lines.append(f"{name}  {state}")
        lines += [f"    {line}" for line in (logs[name].stdout or logs[name].why).splitlines()]
    return Exit("\n".join([*lines, next_command(f"fab ssh {nodes[0].name}")]), code=1)
